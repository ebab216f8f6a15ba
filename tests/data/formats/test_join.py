"""Rows of several runs under the same ids: joined by id, model and folder."""

import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges, write_log

R1, QWEN = "deepseek-r1", "qwen"


def asked(key: str, model: str | None, question: str) -> dict:
    body = {"messages": [{"role": "user", "content": question}]}
    return {"custom_id": key, "body": body | ({"model": model} if model else {})}


def answered(key: str, model: str | None, answer: str) -> dict:
    message = {"reasoning": "r", "content": answer}
    choices = [{"message": message, "finish_reason": "stop"}]
    body = {"choices": choices} | ({"model": model} if model else {})
    return {"custom_id": key, "response": {"status_code": 200, "body": body}}


def failed(key: str) -> dict:
    return {"custom_id": key, "response": {"status_code": 400, "body": None}, "error": "no"}


def outcomes_of(folder: Path, rows: list[dict]) -> list[Exchange | Reject]:
    path = folder / "batch.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_exchanges(log_files(str(path))))


def joined(folder: Path, rows: list[dict]) -> tuple[list[tuple[str, str | None]], Counter[str]]:
    """Questions with their answers, and the reasons of rejects."""
    outcomes = outcomes_of(folder, rows)
    pairs = [
        (outcome.messages[-1]["content"], outcome.content)
        for outcome in outcomes
        if isinstance(outcome, Exchange) and outcome.messages
    ]
    return sorted(pairs), Counter(one.reason for one in outcomes if isinstance(one, Reject))


def test_runs_of_two_models_with_the_same_ids_are_joined_by_model(tmp_path):
    rows = [asked("1", R1, "r"), asked("1", QWEN, "q")]
    rows += [answered("1", QWEN, "Q"), answered("1", R1, "R")]
    assert joined(tmp_path, rows) == ([("q", "Q"), ("r", "R")], Counter())


def test_a_failed_request_without_a_model_belongs_to_the_run_without_an_answer(tmp_path):
    rows = [asked("1", R1, "r"), asked("1", QWEN, "q"), failed("1"), answered("1", QWEN, "Q")]
    assert joined(tmp_path, rows) == ([("q", "Q")], Counter({"error_response": 1}))


def test_an_answer_of_another_asked_model_is_not_joined(tmp_path):
    rows = [asked("1", R1, "r"), asked("2", QWEN, "q"), answered("1", QWEN, "Q")]
    reasons = Counter({"unmatched_request": 2, "unmatched_response": 1})
    assert joined(tmp_path, rows) == ([], reasons)


def test_a_dated_name_of_the_model_is_joined(tmp_path):
    rows = [asked("1", R1, "r"), answered("1", f"{R1}-2026-01-01", "R")]
    assert joined(tmp_path, rows) == ([("r", "R")], Counter())
    rows += [asked("1", QWEN, "q"), answered("1", QWEN, "Q")]
    assert joined(tmp_path, rows) == ([("q", "Q"), ("r", "R")], Counter())


def test_a_request_without_a_model_is_joined(tmp_path):
    rows = [asked("1", None, "r"), answered("1", R1, "R"), asked("2", R1, "s")]
    reasons = Counter({"unmatched_request": 1})
    assert joined(tmp_path, rows) == ([("r", "R")], reasons)


def test_different_requests_of_one_model_stay_ambiguous(tmp_path):
    rows = [asked("1", R1, "a"), asked("1", R1, "b"), answered("1", R1, "A")]
    rows += [asked("1", QWEN, "q"), answered("1", QWEN, "Q")]
    assert joined(tmp_path, rows) == ([("q", "Q")], Counter({"ambiguous_id": 1}))


def halves(key: str, session: str, at: int, shipper: str) -> list[dict]:
    """A request and its response as a shipper stores them: an object in a row of its own."""
    messages = [{"role": "user", "content": "Hi"}]
    request = {"request_id": key, "session_id": session, "timestamp": at}
    message = {"reasoning": "r", "content": f"answer of {session}"}
    choices = [{"message": message, "finish_reason": "stop"}]
    return [
        {"shipper": shipper, "line": {**request, "payload": {"model": R1, "messages": messages}}},
        {"shipper": shipper, "line": {"request_id": key, "payload": {"choices": choices}}},
    ]


def test_a_request_that_was_shipped_twice_is_used_once(tmp_path):
    first, answer = halves("1", "a", 1_782_900_000, "x")
    again, _ = halves("1", "a", 1_782_900_000, "y")
    exchange, copy = outcomes_of(tmp_path, [first, again, answer])
    assert isinstance(exchange, Exchange) and exchange.session == "a"
    assert isinstance(copy, Reject) and copy.reason == "duplicate"


def test_a_retried_request_is_answered_once(tmp_path):
    at = 1_782_900_000
    first, _ = halves("1", "a", at, "x")
    again, answer = halves("1", "a", at + 7, "x")
    exchange, retried = outcomes_of(tmp_path, [first, again, answer])
    assert isinstance(exchange, Exchange) and exchange.time == at + 7
    assert isinstance(retried, Reject) and retried.reason == "duplicate"
    # Two runs that number their requests alike, whatever the order of their rows.
    _, earlier = halves("1", "a", at, "x")
    for rows in ([first, earlier, again, answer], [first, again, earlier, answer]):
        assert [outcome.time for outcome in outcomes_of(tmp_path, rows)] == [at, at + 7]


def test_a_retry_may_have_other_fields_of_the_log(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"request_id": "1", "model": R1, "messages": messages, "pod": "a"}
    again = asked | {"pod": "b", "attempt_number": 2}
    choices = [{"message": {"reasoning": "r", "content": "a"}, "finish_reason": "stop"}]
    outcomes = outcomes_of(tmp_path, [asked, again, {"request_id": "1", "choices": choices}])
    assert [type(outcome) for outcome in outcomes] == [Exchange, Reject]


@pytest.mark.parametrize(
    "more", [{"chat_template_kwargs": {"enable_thinking": False}}, {"tool_choice": "none"}]
)
def test_requests_that_differ_in_any_parameter_are_no_retries(tmp_path, more):
    first, answer = halves("1", "a", 1_782_900_000, "x")
    again, _ = halves("1", "a", 1_782_900_007, "x")
    again["line"]["payload"] |= more
    outcomes = outcomes_of(tmp_path, [first, again, answer])
    assert {outcome.reason for outcome in outcomes} == {"ambiguous_id"}


def test_equal_requests_of_two_sessions_are_no_copies(tmp_path):
    rows = [*halves("1", "a", 1_782_900_000, "x"), *halves("1", "b", 1_782_900_000, "x")]
    assert {outcome.reason for outcome in outcomes_of(tmp_path, rows)} == {"ambiguous_id"}


def test_the_outermost_id_joins_the_halves(tmp_path):
    rows = halves("inner-1", "a", 1_782_900_000, "x")
    rows[1]["line"]["request_id"] = "inner-2"
    rows = [{"request_id": "outer", **row} for row in rows]
    (exchange,) = outcomes_of(tmp_path, rows)
    assert isinstance(exchange, Exchange)


def events(**both) -> list[dict]:
    """A call's request and answer as an application's own rows."""
    messages = [{"role": "user", "content": "Hi"}]
    message = {"role": "assistant", "reasoning": "r", "content": "yo"}
    return [
        {**both, "kind": "request", "payload": {"model": R1, "messages": messages}},
        {**both, "kind": "response", "message": message, "finish": "stop"},
    ]


def test_an_applications_own_rows_are_joined_by_their_call(tmp_path):
    (exchange,) = outcomes_of(tmp_path, events(call="c-1", conv="s-1"))
    assert isinstance(exchange, Exchange)
    assert (exchange.content, exchange.session) == ("yo", "s-1")


def test_a_call_is_no_id_where_rows_have_one(tmp_path):
    rows = [
        {"id": key, "call": "chat", **half}
        for key in ("r1", "r2")
        for half in (
            {"model": R1, "messages": [{"role": "user", "content": key}]},
            {"choices": [{"message": {"content": "yo"}, "finish_reason": "stop"}]},
        )
    ]
    outcomes = outcomes_of(tmp_path, rows)
    assert [outcome.messages[-1]["content"] for outcome in outcomes] == ["r1", "r2"]


def test_pieces_of_another_apis_stream_are_no_answers(tmp_path):
    rows = events(request_id="r1")[:1]
    for text in "abc":
        message = {"role": "assistant", "content": text}
        rows.append({"request_id": "r1", "model": R1, "message": message, "done": text == "c"})
    assert not any(isinstance(outcome, Exchange) for outcome in outcomes_of(tmp_path, rows))


def test_a_line_that_was_printed_twice_is_one_request(tmp_path):
    request, answer = (json.dumps(row) for row in events(request_id="r1"))
    log = tmp_path / "app.log"
    log.write_text(
        f"2026-07-01 10:00:00,123 INFO app: {request}\n"
        f"2026-07-01 10:00:00,124 INFO app: {request}\n"
        f"2026-07-01 10:00:02,000 +0200 INFO app: {answer}\n"
    )
    outcomes = list(read_exchanges(log_files(str(log))))
    assert [type(outcome) for outcome in outcomes] == [Exchange, Reject]
    assert outcomes[1].reason == "duplicate"


@pytest.mark.parametrize(
    "key", ["req_id", "correlationId", "call_uuid", "llm_request_id", "trace_id"]
)
@pytest.mark.parametrize(
    "answer",
    [
        {"raw_output": "<think>\nR\n</think>\n\nA"},
        {"bot_reply": "A", "bot_reasoning": "R"},
        {"response": {"text": "A", "reasoning": "R"}},
        {"reply": {"role": "assistant", "content": "A", "reasoning": "R"}},
    ],
)
@pytest.mark.parametrize("asked", ["messages", "prompt", "request.messages", "input.chat"])
def test_an_applications_own_events_are_joined(tmp_path, key, answer, asked) -> None:
    """By an id of the call and an answer that are named as applications name them."""
    rows = []
    for number in range(2):
        holder, _, name = asked.rpartition(".")
        messages = [{"role": "user", "content": f"Question {number}"}]
        prompt = {holder: {name: messages}} if holder else {name: messages}
        about = {key: f"r-{number}", "model": "deepseek-r1", "user_hash": "ada"}
        rows.append({**about, "event": "llm.request", "ts": 1_795_447_800 + number, **prompt})
        rows.append({**about, "event": "llm.response", "finish_reason": "stop", **answer})
    outcomes = list(read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows)))))
    assert [type(outcome) for outcome in outcomes] == [Exchange, Exchange]
    first = outcomes[0]
    assert first.messages == [{"role": "user", "content": "Question 0"}]
    assert f"{first.reasoning or ''}{first.content}".count("R") == 1
    assert (first.user, first.time, first.finish_reason) == ("ada", 1_795_447_800, "stop")
