"""Conversations as applications keep them: a row for each message, or all messages in one row."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.rows.row_fields import fields
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


def test_parents_are_found_by_a_message_s_own_id(tmp_path: Path) -> None:
    rows = rows_of("a")
    for number, row in enumerate(rows):
        row |= {"message_id": f"m{number}", "request_id": f"r{number}"}
        row["parent_message_id"] = f"m{number - 1}" if number else None
    again = {**rows[2], "message_id": "m9", "content": "two", "created_at": BEGAN + 150}
    write_log(tmp_path / "log.jsonl", [*rows, again])
    answers = {answer: asked for _, asked, _, answer, *_ in read(tmp_path / "log.jsonl")}
    assert answers["two"] == ["Be brief.", "Two?"]
    assert answers["3"] == ["Be brief.", "Two?", "2", "Three?"]


def test_parents_that_are_named_in_part_are_no_prompt(tmp_path: Path) -> None:
    rows = rows_of("a")
    for number, row in enumerate(rows):
        row["id"] = number
    rows[2]["parent_id"] = 1
    rows[4]["parent_id"] = 3
    write_log(tmp_path / "log.jsonl", rows)
    exchange, reject = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(exchange, Exchange) and isinstance(reject, Reject)
    assert [message["content"] for message in exchange.messages or ()] == ["Be brief.", "Two?"]
    assert reject.reason == "ambiguous_id"


def test_rows_of_other_kinds_are_in_no_prompt(tmp_path: Path) -> None:
    rows = rows_of("a")
    event = {"conversation_id": "a", "created_at": BEGAN + 90, "type": "tool_start"}
    write_log(tmp_path / "log.jsonl", [*rows, event])
    assert read(tmp_path / "log.jsonl") == expected("a")
    unknown = {**event, "role": "moderator", "content": "Stay on the topic."}
    write_log(tmp_path / "log.jsonl", [*rows, unknown])
    outcomes = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert [outcome.reason for outcome in outcomes if isinstance(outcome, Reject)] == [
        "wrong_type",
        "wrong_type",
    ]


def test_reasoning_as_open_webui_renders_it_is_no_text_of_the_model(tmp_path: Path) -> None:
    rows = rows_of("a")
    rows[2]["content"] = '<details type="reasoning" done="true">\n&gt; One.\n</details>\n2'
    write_log(tmp_path / "log.jsonl", rows)
    outcomes = list(read_exchanges(log_files(str(tmp_path / "log.jsonl"))))
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Reject)]
    assert reasons == ["text_not_logged"] * 2


def test_a_data_set_s_weights_count_though_its_messages_have_times(tmp_path: Path) -> None:
    messages = [{"ts": BEGAN + 60 * number, **message} for number, message in enumerate(MESSAGES)]
    write_log(tmp_path / "log.jsonl", [{"messages": messages, "weight": 0}])
    (reject,) = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(reject, Reject) and reject.reason == "weighted_out"


def test_a_conversation_lends_its_messages_no_time_and_no_text(tmp_path: Path) -> None:
    messages = [
        {"created_at": BEGAN + 60 * number, **message} for number, message in enumerate(MESSAGES)
    ]
    row = {"id": "c1", "timestamp": 1_600_000_000, "content": "a title", "messages": messages}
    write_log(tmp_path / "log.jsonl", [row])
    assert read(tmp_path / "log.jsonl") == expected("c1")


def test_nested_arrays_keep_a_message_s_other_fields(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = {
        "m.role": ["user", "assistant", "tool"],
        "m.content": ["Two?", None, "2"],
        "m.tool_calls": [None, [call], None],
        "m.tool_call_id": [None, None, "1"],
        "completion": "2",
        "temperature": 0.6,
    }
    write_log(tmp_path / "log.jsonl", [row])
    (exchange,) = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(exchange, Exchange) and exchange.messages is not None
    assert exchange.messages[1]["tool_calls"] == [call]
    assert exchange.messages[2]["tool_call_id"] == "1"


@pytest.mark.parametrize("block", [{"type": "tool_call", "id": "1"}, {"type": "template"}])
@pytest.mark.parametrize("in_answer", [False, True])
def test_blocks_of_tensorzero_that_are_no_texts_are_not_left_out(
    tmp_path: Path, block: dict[str, str], in_answer: bool
) -> None:
    text = {"type": "text", "text": "a"}
    asked = [{"role": "user", "content": [text] if in_answer else [text, block]}]
    row = {
        "function_name": "f",
        "variant_name": "v",
        "episode_id": "e",
        "input": {"messages": asked},
        "output": [text, block] if in_answer else [text],
    }
    write_log(tmp_path / "log.jsonl", [row])
    (reject,) = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(reject, Reject)


def test_nginx_writes_a_dash_for_a_header_that_was_not_sent() -> None:
    row = {"http_x_user_id": "-", "http_x_session_id": "s1"}
    assert (fields(row)["user"], fields(row)["session"]) == (None, "s1")


def test_only_openai_s_own_names_are_taken_from_a_java_client(tmp_path: Path) -> None:
    schema = {"type": "object", "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    request = {"messages": [{"role": "user", "content": "Two?"}], "topP": 0.9, "tools": tools}
    message = {"role": "assistant", "content": "2"}
    choice = {"message": message, "finishReason": None, "finish_reason": "stop"}
    write_log(tmp_path / "log.jsonl", [{"request": request, "response": {"choices": [choice]}}])
    (exchange,) = read_exchanges(log_files(str(tmp_path / "log.jsonl")))
    assert isinstance(exchange, Exchange)
    assert (exchange.top_p, exchange.template_arguments["tools"]) == (0.9, tools)
