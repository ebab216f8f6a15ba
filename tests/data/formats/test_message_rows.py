"""Conversations as applications keep them: a row for each message, or all messages in one row."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges, write_log

ABOUT = {"model": "deepseek-r1", "temperature": 0.6, "top_p": 0.95}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2", "reasoning_content": "One and one.", **ABOUT},
    {"role": "user", "content": "Three?"},
    {"role": "assistant", "content": "3", **ABOUT},
]
BEGAN = 1_772_438_400


def rows_of(conversation: str) -> list[dict[str, Any]]:
    return [
        {"conversation_id": conversation, "created_at": BEGAN + 60 * number, **message}
        for number, message in enumerate(MESSAGES)
    ]


def read(path: Path) -> list[tuple[Any, ...]]:
    """Each exchange: its session, contents of its prompt, answer, reasoning, time, sampling."""
    described = []
    for outcome in read_exchanges(log_files(str(path))):
        assert isinstance(outcome, Exchange)
        contents = [message["content"] for message in outcome.messages or ()]
        sampling = (outcome.temperature, outcome.top_p)
        answer = (outcome.reasoning, outcome.content)
        described.append((outcome.session, contents, *answer, outcome.time, *sampling))
    return sorted(described, key=lambda exchange: (exchange[0], exchange[4]))


def expected(session: str) -> list[tuple[Any, ...]]:
    first = ["Be brief.", "Two?"]
    return [
        (session, first, "One and one.", "2", BEGAN + 60, 0.6, 0.95),
        (session, [*first, "2", "Three?"], None, "3", BEGAN + 180, 0.6, 0.95),
    ]


@given(st.permutations([*rows_of("a"), *rows_of("b")]))
def test_a_conversation_s_rows_are_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "messages.jsonl"
    write_log(path, rows)
    assert read(path) == [*expected("a"), *expected("b")]


def test_a_stored_conversation_is_read_as_a_table_of_its_messages(tmp_path: Path) -> None:
    messages = [{"ts": BEGAN + 60 * number, **message} for number, message in enumerate(MESSAGES)]
    write_log(tmp_path / "log.jsonl", [{"_id": {"$oid": "c1"}, "messages": messages}] * 2)
    assert read(tmp_path / "log.jsonl") == [one for one in expected("c1") for _ in range(2)]


def test_without_times_of_its_messages_a_conversation_is_one_exchange(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [{"messages": MESSAGES}])
    ((_, asked, _, answer, *_),) = read(tmp_path / "log.jsonl")
    assert (asked[-1], answer) == ("Three?", "3")


def test_a_failed_answer_is_counted_and_in_no_prompt(tmp_path: Path) -> None:
    rows = rows_of("a")
    rows[2] |= {"content": "", "error": "timed out"}
    write_log(tmp_path / "log.jsonl", rows)
    failed, exchange = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(failed, Reject)
    assert failed.reason == "error_response"
    assert isinstance(exchange, Exchange)
    assert [message["content"] for message in exchange.messages or ()] == [
        *("Be brief.", "Two?", "Three?")
    ]


def test_a_conversation_without_an_answer_is_one_reject(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [*rows_of("a"), *rows_of("b")[:2]])
    outcomes = list(read_exchanges(log_files(str(tmp_path / "log.jsonl"))))
    rejects = [outcome for outcome in outcomes if isinstance(outcome, Reject)]
    assert [reject.reason for reject in rejects] == ["no_response"]


def test_rows_of_messages_without_a_conversation_are_named(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", MESSAGES)
    (reject,) = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(reject, Reject)
    assert "log the endpoint's" in reject.detail


def test_another_answer_to_a_question_is_in_no_prompt(tmp_path: Path) -> None:
    rows = rows_of("a")
    for number, row in enumerate(rows):
        row |= {"id": number, "parent_id": number - 1 if number else None}
    again = {**rows[2], "id": 9, "content": "two", "created_at": BEGAN + 150}
    write_log(tmp_path / "log.jsonl", [*rows, again])
    answers = {answer: asked for _, asked, _, answer, *_ in read(tmp_path / "log.jsonl")}
    assert answers == {
        "2": ["Be brief.", "Two?"],
        "two": ["Be brief.", "Two?"],
        "3": ["Be brief.", "Two?", "2", "Three?"],
    }


def test_nested_arrays_of_clickhouse_are_messages(tmp_path: Path) -> None:
    row = {
        "msg.role": ["system", "user"],
        "msg.content": ["Be brief.", "Two?"],
        "completion": "2",
        "params": {"temperature": 0.6},
        "event_time": "2026-03-02 08:00:00.000",
    }
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row) + "\n")
    ((_, asked, _, answer, time, temperature, _),) = read(path)
    assert (asked, answer, time, temperature) == (["Be brief.", "Two?"], "2", BEGAN, 0.6)
