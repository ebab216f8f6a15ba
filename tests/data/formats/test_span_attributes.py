"""The same attributes under any backend's names and types."""

import json

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats.rows.span_attributes import attributes_of, plain_value
from tests.data.formats.test_elsewhere import read_rows

MESSAGE = [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
ANSWER = [
    {
        "role": "assistant",
        "parts": [{"type": "reasoning", "content": "r"}, {"type": "text", "content": "a"}],
        "finish_reason": "stop",
    }
]
ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "r1",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.usage.output_tokens": 9,
    "gen_ai.conversation.id": "c-1",
    "gen_ai.input.messages": json.dumps(MESSAGE),
    "gen_ai.output.messages": json.dumps(ANSWER),
}
SECOND = 1_782_900_000


def typed(snake: bool) -> list[dict]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    snaked = {"stringValue": "string_value", "intValue": "int_value", "doubleValue": "double_value"}
    pairs = []
    for key, value in ATTRIBUTES.items():
        kind = kinds[type(value)]
        held = str(value) if isinstance(value, int) else value
        pairs.append({"key": key, "value": {snaked[kind] if snake else kind: held}})
    return pairs


def split(kind: type) -> dict:
    return {key: value for key, value in ATTRIBUTES.items() if isinstance(value, str) == kind}


NANOSECONDS = f"{SECOND}000000000"
SPANS = {
    "collector": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {"spans": [{"startTimeUnixNano": NANOSECONDS, "attributes": typed(False)}]}
                ]
            }
        ]
    },
    "proto's names": {
        "resource_spans": [
            {
                "scope_spans": [
                    {"spans": [{"start_time_unix_nano": NANOSECONDS, "attributes": typed(True)}]}
                ]
            }
        ]
    },
    "before OTLP 0.15": {
        "resourceSpans": [
            {
                "instrumentationLibrarySpans": [
                    {"spans": [{"startTimeUnixNano": NANOSECONDS, "attributes": typed(False)}]}
                ]
            }
        ]
    },
    "tempo": {
        "batches": [
            {
                "scopeSpans": [
                    {"spans": [{"startTimeUnixNano": NANOSECONDS, "attributes": typed(False)}]}
                ]
            }
        ]
    },
    "jaeger": {
        "traceID": "t",
        "spanID": "s",
        "startTime": SECOND * 10**6,
        "duration": 5,
        "tags": [
            {"key": key, "type": "string", "value": value} for key, value in ATTRIBUTES.items()
        ],
    },
    "zipkin": {"traceId": "t", "id": "s", "timestamp": SECOND * 10**6, "tags": ATTRIBUTES},
    "console": {"name": "chat", "start_time": "2026-07-01T10:00:00Z", "attributes": ATTRIBUTES},
    "clickhouse": {"Timestamp": "2026-07-01 10:00:00.000", "SpanAttributes": ATTRIBUTES},
    "application insights": {
        "timestamp": "2026-07-01T10:00:00Z",
        "customDimensions": json.dumps(ATTRIBUTES),
    },
    "signoz": {
        "timestamp": "2026-07-01T10:00:00Z",
        "attributes_string": split(True),
        "attributes_number": split(False),
    },
    "honeycomb": {"time": "2026-07-01T10:00:00Z", **ATTRIBUTES},
    "elasticsearch": {"_index": "x", "_source": {"@timestamp": "2026-07-01T10:00:00Z"}},
}
SPANS["elasticsearch"]["_source"]["attributes"] = ATTRIBUTES


@pytest.mark.parametrize("name", SPANS)
def test_a_span_of_any_backend_is_read(tmp_path, name):
    (exchange,) = read_rows(tmp_path, [SPANS[name]])
    assert isinstance(exchange, Exchange), exchange
    assert exchange.messages == [{"role": "user", "content": "Hi"}]
    assert (exchange.reasoning, exchange.content) == ("r", "a")
    assert (exchange.temperature, exchange.session, exchange.time) == (0.5, "c-1", float(SECOND))
    assert exchange.completion_tokens == 9


def test_tags_of_words_are_no_attributes():
    assert attributes_of({"tags": ["prod", "r1"]}) == {}
    assert attributes_of({"tags": {"env": "prod"}, "attributes": {"gen_ai.system": "x"}}) == {
        "gen_ai.system": "x"
    }


def test_attributes_that_are_not_pairs_are_refused():
    with pytest.raises(Reject, match="wrong_type"):
        attributes_of({"attributes": [1, 2]})


def test_otlp_values_are_plain():
    listed = {"arrayValue": {"values": [{"intValue": "5"}, {"boolValue": True}]}}
    assert plain_value(listed) == [5, True]
    assert plain_value(
        {"kvlistValue": {"values": [{"key": "a", "value": {"doubleValue": 2.5}}]}}
    ) == {"a": 2.5}
    assert plain_value({}) is None
    assert plain_value("x") == "x"


def flat(question: str, answer: str) -> dict[str, str]:
    """OpenLLMetry's attributes of a call."""
    return {
        **{"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": question},
        **{"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": answer},
        "gen_ai.completion.0.finish_reason": "stop",
    }


def span(name: str, trace: str, parent: str, attributes: dict[str, str]) -> dict:
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]
    return {"spanId": name, "traceId": trace, "parentSpanId": parent, "attributes": pairs}


@pytest.mark.parametrize(
    ("child", "calls"),
    [
        (span("2", "t", "1", flat("Hi", "Yes")), 1),
        (span("2", "t", "1", flat("And you?", "Yes")), 2),
        (span("2", "t", "1", flat("Hi", "No")), 2),
        (span("2", "other", "1", flat("Hi", "Yes")), 2),
        (span("2", "t", "", flat("Hi", "Yes")), 2),
        (span("2", "t", "1", {"gen_ai.completion.0.content": "Yes"}), 1),
    ],
)
def test_a_span_around_the_same_call_is_no_call(tmp_path, child, calls):
    spans = [span("1", "t", "", flat("Hi", "Yes")), child]
    batch = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    outcomes = list(read_rows(tmp_path, [batch]))
    assert sum(isinstance(outcome, Exchange) for outcome in outcomes) == calls
    assert len(outcomes) == 2
