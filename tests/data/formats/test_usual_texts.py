"""Prompts, answers and reasoning are read under names that applications choose."""

import itertools
from typing import Any

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges, write_log

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2, please?"}]
REASONING, CONTENT = "Two and two make four.", "It is 4."
WHOLE = f"<think>\n{REASONING}\n</think>\n\n{CONTENT}"

PROMPTS = (
    *("messages", "prompt", "input", "chat_history", "llm_input", "full_prompt", "msgs"),
    *("request.messages", "llm.prompt", "payload.messages"),
)
PARTS = (
    *(("system", "user"), ("sys_prompt", "query"), ("system_text", "user_text")),
    *(("prompt.system", "prompt.user"), ("system_instruction", "user_input")),
)
ANSWERS = (
    *("response", "output", "completion", "reply", "raw_output", "llm_output", "generated_text"),
    *("model_answer", "assistant_message", "ai_response", "bot_reply", "final_answer"),
)
PAIRS = (
    *(
        ("response_text", "reasoning_text"),
        ("answer", "think"),
        ("final_answer", "chain_of_thought"),
    ),
    *(("bot_response", "bot_reasoning"), ("text", "thoughts"), ("output.content", "output.cot")),
    *(("response.text", "response.reasoning"), ("response.content", "response.thinking")),
)


def nested(**values: Any) -> dict[str, Any]:
    """A row with values at paths, whose dots are written as `__`."""
    row: dict[str, Any] = {}
    for path, value in values.items():
        *holders, key = path.split("__")
        holder = row
        for name in holders:
            holder = holder.setdefault(name, {})
        holder[key] = value
    return row


def at(**paths: Any) -> dict[str, Any]:
    return nested(**{path.replace(".", "__"): value for path, value in paths.items()})


def read(folder, row: dict[str, Any]) -> list[Any]:
    row = {"ts": 1_795_447_800, "model": "deepseek-r1", "finish_reason": "stop", **row}
    return list(read_exchanges(log_files(str(write_log(folder / "log.jsonl", [row, row])))))


def check_read(folder, row: dict[str, Any]) -> None:
    for exchange in read(folder, row):
        assert isinstance(exchange, Exchange), (row, exchange)
        assert exchange.messages == MESSAGES, row
        texts = ((exchange.reasoning or "").strip(), (exchange.content or "").strip())
        assert texts in ((REASONING, CONTENT), ("", WHOLE)), row
        assert exchange.finish_reason == "stop"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_messages_and_an_answer_are_read_under_any_of_their_names(tmp_path, prompt: str) -> None:
    for answer in ANSWERS:
        check_read(tmp_path, at(**{prompt: MESSAGES, answer: WHOLE}))
    for answer, thought in PAIRS:
        if prompt.partition(".")[0] != answer.partition(".")[0]:
            check_read(tmp_path, at(**{prompt: MESSAGES, answer: CONTENT, thought: REASONING}))


@pytest.mark.parametrize(("system", "user"), PARTS)
def test_a_prompt_may_be_a_system_and_a_users_text(tmp_path, system: str, user: str) -> None:
    texts = {system: MESSAGES[0]["content"], user: MESSAGES[1]["content"]}
    for answer in ANSWERS:
        check_read(tmp_path, at(**texts, **{answer: WHOLE}))
    for history in ("history", "context", "examples"):
        row = at(**texts, **{history: [{"q": "1+1?", "a": "2"}]}, raw_output=WHOLE)
        assert not any(isinstance(one, Exchange) for one in read(tmp_path, row))


def test_what_the_model_wrote_counts_before_what_was_made_of_it(tmp_path) -> None:
    for made, raw in itertools.product(("answer_text", "final_answer", "result"), ANSWERS):
        if made != raw:
            check_read(tmp_path, {"messages": MESSAGES, made: CONTENT, raw: WHOLE})


def test_of_two_different_answers_none_is_taken(tmp_path) -> None:
    row = {"messages": MESSAGES, "bot_reply": "4", "llm_output": "Four.", "cot": REASONING}
    assert not any(isinstance(one, Exchange) for one in read(tmp_path, row))


@pytest.mark.parametrize(
    "row",
    [
        {"llm_output": CONTENT, "reasoning_gz": "H4sIAAAAAAAA"},  # its reasoning is not a text
        {"response_raw": '{"id": "c-1", "choices": [{"message": {"content": "It is'},  # cut
        {"raw_output": 'data: {"choices": [{"delta": {"content": "It'},
        {"result": CONTENT},  # without an end of its reasoning, it may be anything
    ],
)
def test_a_text_that_may_not_be_what_the_model_wrote_is_not_taken(tmp_path, row) -> None:
    outcomes = read(tmp_path, {"messages": MESSAGES, **row})
    assert not any(isinstance(one, Exchange) for one in outcomes)


def test_a_solution_of_a_data_set_is_no_response(tmp_path) -> None:
    rows = [{"messages": MESSAGES, "model_answer": CONTENT}, {"messages": MESSAGES, "reply": "4"}]
    outcomes = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows))))
    assert not any(isinstance(one, Exchange) for one in outcomes)
