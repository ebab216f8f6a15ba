"""GenAI events of one message each: joined across batches and files, with or without spans."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.data.config import TrafficConfig
from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats import files_by_format, read_records
from outrider.data.ingest.ingest import ingest
from tests.data.logs import read_exchanges, write_log

TIMES = itertools.count(1_782_900_000_000_000_000, 1000)


def value(plain) -> dict:
    if isinstance(plain, dict):
        pairs = [{"key": key, "value": value(inner)} for key, inner in plain.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"intValue": str(plain)} if isinstance(plain, int) else {"stringValue": plain}


def pairs(attributes: dict) -> list[dict]:
    return [{"key": key, "value": value(plain)} for key, plain in attributes.items()]


def event(span: str, kind: str, body: dict) -> dict:
    return {
        "timeUnixNano": str(next(TIMES)),
        "traceId": "t",
        "spanId": span,
        "body": value(body),
        "attributes": pairs({"event.name": f"gen_ai.{kind}", "gen_ai.system": "openai"}),
    }


def choice(span: str, text: str, index: int = 0) -> dict:
    message = {"role": "assistant", "content": text} if text else {"role": "assistant"}
    return event(span, "choice", {"index": index, "finish_reason": "stop", "message": message})


def span(name: str, **attributes: str) -> dict:
    known = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "deepseek-r1"}
    known |= {"gen_ai.request.temperature": "0.6"}
    return {
        "traceId": "t",
        "spanId": name,
        "startTimeUnixNano": "1782900000000000000",
        "attributes": pairs(known | attributes),
    }


def logs(*records: dict) -> dict:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def traces(*spans: dict) -> dict:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def read(folder: Path, **files: list[dict]) -> list[Exchange | Reject]:
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return list(read_exchanges(log_files(str(folder))))


def exchanges_in(outcomes: list[Exchange | Reject]) -> list[Exchange]:
    return [outcome for outcome in outcomes if isinstance(outcome, Exchange)]


def reasons_of(outcomes: list[Exchange | Reject]) -> Counter[str]:
    return Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Reject))


ASKED = [event("a", "system.message", {"content": "Be brief."})]
ASKED += [event("a", "user.message", {"content": "Hi"})]
ANSWERED = choice("a", "<think>\nHm.\n</think>\n\nHo")


@pytest.mark.parametrize("names", [("logs", "traces"), ("z", "a")], ids=["first", "last"])
def test_events_in_several_batches_are_joined_with_their_span(tmp_path, names):
    batches = [logs(ASKED[0]), logs(ASKED[1], event("b", "user.message", {"content": "Lost"}))]
    rows = [*batches, logs(ANSWERED)]
    outcomes = read(tmp_path, **{names[0]: rows, names[1]: [traces(span("a"), span("b"))]})
    (exchange,) = exchanges_in(outcomes)
    assert exchange.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert exchange.content == "<think>\nHm.\n</think>\n\nHo"
    assert (exchange.temperature, exchange.model) == (0.6, "deepseek-r1")
    assert reasons_of(outcomes) == {"not_a_generation": 5, "unmatched_request": 1}


def test_events_without_spans_have_no_sampling(tmp_path):
    (exchange,) = exchanges_in(read(tmp_path, logs=[logs(*ASKED, ANSWERED)]))
    assert (exchange.temperature, exchange.model, exchange.session) == (None, None, None)
    assert exchange.time == pytest.approx(1_782_900_000, abs=1)


def test_events_out_of_order_are_sorted_by_time(tmp_path):
    (exchange,) = exchanges_in(read(tmp_path, logs=[logs(ANSWERED, *reversed(ASKED))]))
    assert [message["role"] for message in exchange.messages or ()] == ["system", "user"]


def test_events_without_texts_name_the_setting(tmp_path):
    silent = [event("a", "user.message", {}), choice("a", "")]
    outcomes = read(tmp_path, logs=[logs(*silent)], traces=[traces(span("a"))])
    details = [outcome.detail for outcome in outcomes if isinstance(outcome, Reject)]
    assert any("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true" in one for one in details)
    assert not exchanges_in(outcomes)


def test_a_failed_call_is_an_error(tmp_path):
    failed = span("a", **{"error.type": "APITimeoutError"})
    outcomes = read(tmp_path, logs=[logs(*ASKED)], traces=[traces(failed)])
    assert reasons_of(outcomes) == {"not_a_generation": 2, "error_response": 1}


def test_the_calls_of_one_line_have_numbers_of_their_own(tmp_path):
    other = [event("b", "user.message", {"content": "Hi"}), choice("b", "Hm.\n</think>\n\nHo")]
    calls = exchanges_in(read(tmp_path, logs=[logs(*ASKED, ANSWERED, *other)]))
    assert len({(exchange.place, exchange.call) for exchange in calls}) == len(calls) == 2


def test_a_span_whose_messages_are_one_event_is_not_lost(tmp_path):
    def messages(role: str, text: str) -> str:
        return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])

    details = event("a", "client.inference.operation.details", {})
    details["attributes"] += pairs(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "deepseek-r1",
            "gen_ai.input.messages": messages("user", "Hi"),
            "gen_ai.output.messages": messages("assistant", "Hm.\n</think>\n\nHo"),
            "gen_ai.response.finish_reasons": json.dumps(["stop"]),
        }
    )
    outcomes = read(tmp_path, logs=[logs(details)], traces=[traces(span("a"), span("b"))])
    assert len(exchanges_in(outcomes)) == 1
    assert reasons_of(outcomes) == {"not_a_generation": 1, "content_not_logged": 1}


def test_no_row_is_lost(tmp_path):
    path = tmp_path / "logs.jsonl"
    rows = [logs(ASKED[0]), traces(span("a")), logs(ASKED[1], ANSWERED)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"resourceLogs": 1}\n{"a\n')
    for name, files in files_by_format(log_files(str(path))).items():
        items = list(read_records(name, files, tmp_path))
        assert sum(item.rows for item in items) == sum(file.rows for file in files) == 5


def test_calls_without_rows_of_their_own_are_counted(text_target, tmp_path):
    path = tmp_path / "logs.jsonl"
    other = [event("b", "user.message", {"content": "Hi"}), choice("b", "Hm.\n</think>\n\nHo")]
    rows = [logs(ASKED[0], other[0]), logs(ASKED[1], other[1]), logs(ANSWERED)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems: list[str] = []
    summary = ingest(
        text_target,
        TrafficConfig(path=str(path)),
        tmp_path / "out",
        workers=0,
        problems=problems,
    )
    counts = [summary[name] for name in ("rows", "extra_choices", "exchanges", "joined")]
    assert counts == [3, 2, 2, 0] and summary["rejects"] == {"not_a_generation": 3}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_events_in_application_insights_are_joined_with_their_dependency(tmp_path, is_reversed):
    """Azure's SDK writes a message in the attribute gen_ai.event.content (table `traces`)."""
    rows = []
    for number in range(2):
        parent = f"span-{number}"
        of_call = {"itemType": "dependency", "id": parent, "operation_Id": "op"}
        about = {"gen_ai.request.model": "r1", "gen_ai.request.temperature": "0.6"}
        rows.append({**of_call, "name": "chat r1", "customDimensions": json.dumps(about)})
        answered = {"message": {"content": f"r\n</think>\n\na{number}"}, "finish_reason": "stop"}
        for name, body in {
            "gen_ai.user.message": {"role": "user", "content": f"Question {number}"},
            "gen_ai.choice": {**answered, "index": 0},
        }.items():
            content = {"gen_ai.event.content": json.dumps(body)}
            row = {"itemType": "trace", "message": name, "operation_Id": "op"}
            row |= {"operation_ParentId": parent, "customDimensions": json.dumps(content)}
            rows.append({"timestamp": f"2026-11-21T00:00:0{len(rows)}Z", **row})
    log = write_log(tmp_path / "log.jsonl", reversed(rows) if is_reversed else rows)
    read = [one for one in read_exchanges(log_files(str(log))) if isinstance(one, Exchange)]
    assert {(one.messages[0]["content"], one.content) for one in read} == {
        (f"Question {number}", f"r\n</think>\n\na{number}") for number in range(2)
    }
    assert {one.temperature for one in read} == {0.6}
