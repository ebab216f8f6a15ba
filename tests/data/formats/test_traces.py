"""Trace stores and proxies: Langfuse, LiteLLM and OpenTelemetry beyond the golden logs."""

import json
from datetime import UTC, datetime

import pytest

from outrider.data.exchange import Exchange, Place, Record
from outrider.data.formats import parse_record
from tests.data.formats.test_golden import GOLDEN


def parsed(name, row):
    payload = row if "Timestamp" in row else json.dumps(row).encode()
    return parse_record(name, Record(Place("log", 1), payload))


def test_roles_of_langchain_and_attributes_of_a_table_of_texts():
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": (
            '[{"role": "Human", "parts": [{"type": "text", "content": "Hi"}]}]'
        ),
        "gen_ai.output.messages": (
            '[{"role": "AI", "parts": [{"type": "text", "content": "Ho"}], '
            '"finish_reason": "stop"}]'
        ),
        "gen_ai.request.temperature": "0.6",
        "gen_ai.usage.output_tokens": "3",
    }
    row = {"Timestamp": datetime(2026, 7, 1, 10, tzinfo=UTC), "SpanAttributes": list(said.items())}
    (outcome,) = parsed("otel_genai", row)
    assert outcome.messages == [{"role": "user", "content": "Hi"}] and outcome.content == "Ho"
    assert (outcome.temperature, outcome.completion_tokens, outcome.time) == (0.6, 3, 1782900000.0)


def test_a_span_that_cannot_be_read_spoils_none_of_the_others():
    messages = '[{"role": "user", "content": "Hi"}]'
    answers = '[{"role": "assistant", "content": "Ho", "finish_reason": "stop"}]'
    logged = {"gen_ai.input.messages": messages, "gen_ai.output.messages": answers}
    attributes = [pair(key, text) for key, text in logged.items()]
    older = {"eventName": "gen_ai.user.message", "attributes": [pair("gen_ai.system", "r1")]}
    spans = [{"attributes": [{"key": 17}]}, {"attributes": attributes}, older]
    row = {"resourceLogs": [{"scopeLogs": [{"logRecords": spans}]}]}
    reject, outcome, old = parsed("otel_genai", row)
    assert reject.reason == "wrong_type" and reject.detail.startswith("span 1: ")
    assert (outcome.messages, outcome.content) == ([{"role": "user", "content": "Hi"}], "Ho")
    assert old.reason == "content_not_logged" and "conventions 1.37" in old.detail


def pair(key, text):
    return {"key": key, "value": {"stringValue": text}}


@pytest.mark.parametrize(
    "output, content",
    [
        ("[1] See the notice.", "[1] See the notice."),
        ('[{"open": true}]', '[{"open": true}]'),
        ('{"role": "librarian", "open": true}', '{"role": "librarian", "open": true}'),
        ('{"role": null, "content": "closed"}', "closed"),
        ('{"choices": [{"message": {"content": "closed"}, "finish_reason": "length"}]}', "closed"),
        ('{"role": "assistant", "parts": [{"type": "text", "content": "closed"}]}', "closed"),
    ],
)
def test_spellings_of_the_output(output, content):
    path = GOLDEN / "langfuse" / "observations_v2.jsonl"
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    (outcome,) = parsed("langfuse", {**row, "output": output})
    assert isinstance(outcome, Exchange) and outcome.content == content
    assert outcome.finish_reason == ("length" if "length" in output else "stop")
