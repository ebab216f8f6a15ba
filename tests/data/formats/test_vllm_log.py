"""vLLM's server log: 0.32 (DEBUG), 0.10 (INFO, as kubectl stores it), and --max-log-len 24."""

from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import format_of, read_exchanges, vllm_log
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_log"


def read(path):
    (file,) = log_files(str(path))
    assert format_of(file) == "vllm_log"
    return list(read_exchanges([file]))


def log(tmp_path, text):
    path = tmp_path / "server.log"
    path.write_bytes(text.encode())
    return read(path)


@pytest.fixture(scope="module")
def debug():
    return read(GOLDEN / "debug.log")


def test_lines_of_interleaved_requests_are_joined_by_id(debug):
    multi, normal, tool, cut, one, two, stream = (row for row in debug if isinstance(row, Exchange))
    assert (normal.place.line, multi.place.line) == (4, 7)
    assert normal.prompt_token_ids == [0, 11, 12, 13, 14]
    assert normal.completion_token_ids == [51, 52, 53, 128799, 54, 55, 1]
    assert normal.content == '\n\nYes: "fit",\nshe is.'
    assert (normal.model, normal.session, normal.tenant) == ("deepseek-r1", "s-1", "acme")
    assert (normal.temperature, normal.top_p, normal.finish_reason, normal.time) == (
        0.6,
        0.95,
        "stop",
        None,
    )
    assert (tool.content, tool.finish_reason, tool.completion_token_ids[-1]) == (None, "stop", 1)
    assert (cut.finish_reason, cut.temperature) == ("length", 1.0)
    assert (one.place, two.place, one.choice, two.choice) == (one.place, one.place, 0, 1)
    assert (one.content, two.content) == ("Yes.", "No.")
    assert (stream.completion_token_ids, stream.content) == (
        None,
        "Twice four\n</think>\n\nIt is 8.",
    )
    assert (stream.finish_reason, stream.stop_strings) == ("stop", ("END", "'"))


def test_what_is_no_use_has_its_reason_and_its_lines(debug):
    assert [(row.place.line, row.reason, row.rows) for row in debug if isinstance(row, Reject)] == [
        (1, "not_a_generation", 3),
        (9, "not_a_generation", 1),
        (38, "end_not_logged", 1),
        (44, "no_id", 1),
        (45, "incomplete_line", 1),
        (46, "unmatched_response", 2),
        (48, "not_a_generation", 4),
        (42, "unmatched_request", 2),
    ]


def test_older_releases_log_the_rendered_prompt(text_target):
    rows = read(GOLDEN / "info_0_10.log")
    normal, cut, tool, stream = (row for row in rows if isinstance(row, Exchange))
    assert normal.time == pytest.approx(1782907200.123456)
    assert normal.prompt_text.startswith("<｜begin▁of▁sentence｜>") and not normal.prompt_is_raw
    assert normal.completion_token_ids == [5, 6, 128799, 7, 1]
    assert (cut.completion_token_ids, cut.finish_reason, cut.temperature) == (
        [7, 8, 9],
        "length",
        0.0,
    )
    assert (tool.completion_token_ids, tool.content) == ([5, 128799, 6, 1], None)
    assert (stream.completion_token_ids, stream.content, stream.finish_reason) == (
        None,
        "Hm\n</think>\n\n8",
        "stop",
    )
    reasons = [
        row.reason for row in rows if isinstance(row, Reject) and row.reason != "not_a_generation"
    ]
    assert reasons == ["truncated_log", "not_finished"]
    builder = SequenceBuilder(text_target)
    sequence = builder.build(stream)
    assert sequence.prompt_text == stream.prompt_text
    assert sequence.token_ids.count(builder.tokenizer.bos_token_id) == 1


def test_what_max_log_len_cut_is_told_from_what_it_left():
    cut, whole, answer_cut = read(GOLDEN / "max_log_len.log")
    assert (cut.reason, answer_cut.reason) == ("truncated_log", "truncated_log")
    assert whole.completion_token_ids == [5, 6, 1]  # its prompt's text was cut, its ids were not


RECEIVED = (
    "INFO 07-01 12:00:00 [logger.py:42] Received request chatcmpl-1: prompt: {prompt}, params: "
    "SamplingParams(n=1, temperature=0.6, top_p=0.95, stop=[], stop_token_ids=[]), "
    "prompt_token_ids: None, lora_request: None.{end}\n"
)
GENERATED = (
    "INFO 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1: output: {output}, "
    "output_token_ids: None, finish_reason: stop{end}\n"
)
PROMPT = "<｜User｜>one\n\nit's two, params: n=3\n<｜Assistant｜><think>"
ANSWER = "three's\n</think>\n\nfour"


def test_texts_with_their_line_breaks(tmp_path):
    text = RECEIVED.format(prompt=f"'{PROMPT}'", end="") + GENERATED.format(
        output=f"'{ANSWER}'", end=""
    )
    (row,) = log(tmp_path, text)
    assert (row.prompt_text, row.content) == (PROMPT, ANSWER)


def test_the_formatters_prefix_before_each_line_is_taken_off(tmp_path):
    break_ = "\r\nINFO 07-01 12:00:00 [logger.py:42] "
    prompt, answer = ("'" + text.replace("\n", break_) + "'" for text in (PROMPT, ANSWER))
    (row,) = log(
        tmp_path, RECEIVED.format(prompt=prompt, end="") + GENERATED.format(output=answer, end="")
    )
    assert (row.prompt_text, row.content) == (PROMPT, ANSWER)


def test_colors_and_process_names(tmp_path):
    text = RECEIVED.format(prompt=repr(PROMPT), end="") + GENERATED.format(
        output=repr(ANSWER), end=""
    )
    text = text.replace("INFO", "\x1b[0;36m(APIServer pid=41)\x1b[0;0m \x1b[32mINFO\x1b[0m")
    (row,) = log(tmp_path, text)
    assert (row.prompt_text, row.content) == (PROMPT, ANSWER)


def test_without_debug_the_prompt_is_missing(tmp_path):
    received = (
        RECEIVED.format(prompt="''", end="")
        .replace("prompt: '', ", "")
        .replace("prompt_token_ids: None, ", "")
    )
    (row,) = log(tmp_path, received + GENERATED.format(output="'x'", end=""))
    assert (row.reason, row.detail) == ("prompt_not_logged", "set VLLM_LOGGING_LEVEL=DEBUG")


def test_an_id_that_is_used_again_is_two_requests(tmp_path):
    received, generated = (
        RECEIVED.format(prompt=repr(PROMPT), end=""),
        GENERATED.format(output=repr(ANSWER), end=""),
    )
    rows = log(tmp_path, received + received + generated + received + generated)
    assert [getattr(row, "reason", "exchange") for row in rows] == [
        "unmatched_request",
        "exchange",
        "exchange",
    ]


def test_memory_is_bounded_by_giving_up_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_log, "WAITING", 1000)
    received = RECEIVED.format(prompt=repr(PROMPT), end="")
    rows = log(
        tmp_path, "".join(received.replace("chatcmpl-1", f"chatcmpl-../../{n}") for n in range(50))
    )
    assert [row.reason for row in rows] == ["unmatched_request"] * 50
    assert [row.place.line for row in rows] == list(range(1, 51))


def test_calls_without_ids_cannot_be_put_back(tmp_path):
    output = """'[tool_calls: get_weather({"city": "Paris"})]'"""
    (row,) = log(
        tmp_path,
        RECEIVED.format(prompt=repr(PROMPT), end="") + GENERATED.format(output=output, end=""),
    )
    assert row.reason == "tool_calls_without_ids"
