"""vLLM's text log where it has texts instead of token ids: release 0.11."""

from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges

PROMPT = "<｜User｜>What's 2 × 4?\n<｜Assistant｜><think>\n"
LONGER = "<｜User｜>" + "A longer question. " * 9 + "<｜Assistant｜><think>\n"


def asked(key: str, prompt: str, n: int = 1, max_tokens: int = 30) -> list[str]:
    """The two lines of a request whose prompt is logged as text alone."""
    sampling = f"n={n}, temperature=0.6, top_p=0.9, max_tokens={max_tokens}"
    parameters = f"params: SamplingParams({sampling})"
    return [
        f"DEBUG 11-03 08:20:01 [logger.py:34] Request {key} details: prompt: {prompt!r},"
        " prompt_token_ids: None, prompt_embeds shape: None.",
        f"INFO 11-03 08:20:01 [logger.py:45] Received request {key}: {parameters},"
        " lora_request: None.",
    ]


def answered(key: str, text: str, ids: list[int] | None, end: str | None, stream: str = "") -> str:
    return (
        f"INFO 11-03 08:20:03 [logger.py:77] Generated response {key}{stream}: output: {text!r},"
        f" output_token_ids: {ids}, finish_reason: {end}"
    )


def streamed(key: str, pieces: list[str], whole: str) -> list[str]:
    deltas = [answered(key, piece, [5], None, " (streaming delta)") for piece in pieces]
    return [*deltas, answered(key, whole, None, "streaming_complete", " (streaming complete)")]


def outcomes_of(folder: Path, lines: list[str]) -> list[Exchange | Reject]:
    """Outcomes of a log that also has a longer prompt, which is the only one in doubt."""
    path = folder / "vllm.log"
    doubtful = [*asked("chatcmpl-z", LONGER), answered("chatcmpl-z", "a", [1], "stop")]
    path.write_text("".join(f"{line}\n" for line in [*lines, *doubtful]), encoding="utf-8")
    *outcomes, last = read_exchanges(log_files(str(path)))
    assert isinstance(last, Reject) and last.reason == "truncated_log"
    return outcomes


def test_a_prompt_without_ids_is_read_as_text(tmp_path):
    lines = [*asked("chatcmpl-a", PROMPT), answered("chatcmpl-a", "8", [7, 1], "stop")]
    (outcome,) = outcomes_of(tmp_path, lines)
    assert isinstance(outcome, Exchange)
    assert outcome.prompt_text == PROMPT and not outcome.prompt_is_raw
    assert outcome.completion_token_ids == [7, 1] and outcome.temperature == 0.6


@pytest.mark.parametrize(("count", "end"), [(4, "stop"), (30, "length")])
def test_a_streams_text_comes_from_its_deltas(tmp_path, count, end):
    pieces = ["Twice\n", "</think>", "\n\n", 'It\'s "8".']
    stream = streamed("chatcmpl-a", pieces, f"<streaming_complete: {count} tokens>")
    (outcome,) = outcomes_of(tmp_path, [*asked("chatcmpl-a", PROMPT), *stream])
    assert isinstance(outcome, Exchange)
    assert outcome.content == "".join(pieces) and outcome.completion_is_raw
    assert (outcome.completion_tokens, outcome.finish_reason) == (count, end)


@pytest.mark.parametrize(
    ("last", "limit", "end"),
    [("stop", 400, "stop"), (None, 400, "stop"), ("length", 400, "length"), (None, 6, "length")],
)
def test_a_stream_that_a_parser_changed_is_read_from_its_last_line(tmp_path, last, limit, end):
    whole = "Twice\n</think>\n\n8"
    *deltas, complete = streamed("chatcmpl-a", ["[reasoning: Twice]", "8"], whole)
    deltas[-1] = answered("chatcmpl-a", "8", [5], last, " (streaming delta)")
    # Two deltas with one id each: up to four further tokens may have had no text.
    lines = [*asked("chatcmpl-a", PROMPT, max_tokens=limit), *deltas, complete]
    (outcome,) = outcomes_of(tmp_path, lines)
    assert isinstance(outcome, Exchange)
    assert outcome.content == whole and outcome.completion_is_raw
    assert (outcome.completion_tokens, outcome.finish_reason) == (None, end)


@pytest.mark.parametrize(("length", "is_read"), [(251, True), (250, False), (256, False)])
def test_one_longest_text_of_a_length_that_nobody_sets_is_whole(tmp_path, length, is_read):
    prompt = PROMPT + "x" * (length - len(PROMPT))
    path = tmp_path / "vllm.log"
    lines = [*asked("chatcmpl-a", prompt), answered("chatcmpl-a", "8", [7, 1], "stop")]
    path.write_text("".join(f"{line}\n" for line in lines))
    (outcome,) = read_exchanges(log_files(str(path)))
    assert isinstance(outcome, Exchange) == is_read
    # Two of one length were cut to it.
    again = [line.replace("chatcmpl-a", "chatcmpl-b") for line in lines]
    path.write_text("".join(f"{line}\n" for line in [*lines, *again]))
    assert all(isinstance(one, Reject) for one in read_exchanges(log_files(str(path))))


def test_the_deltas_of_several_choices_are_not_mixed(tmp_path):
    placeholder = "<streaming_complete: 2 tokens>"
    stream = streamed("chatcmpl-a", ["a", "b"], placeholder)
    lines = [*asked("chatcmpl-a", PROMPT, n=2), *stream, stream[-1]]
    assert [getattr(one, "reason", "") for one in outcomes_of(tmp_path, lines)] == [
        "no_token_ids",
        "no_token_ids",
    ]


def test_a_damaged_literal_is_a_reject(tmp_path):
    lines = [*asked("chatcmpl-a", "\x01"), answered("chatcmpl-a", "8", [7, 1], "stop")]
    damaged = [line.replace("\\x01", "\\x0g") for line in lines]
    (outcome,) = outcomes_of(tmp_path, damaged)
    assert isinstance(outcome, Reject) and outcome.reason == "incomplete_line"
