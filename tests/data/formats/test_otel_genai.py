"""Spans under OpenTelemetry's GenAI conventions: one per row, and OTLP JSON."""

import json
from datetime import UTC, datetime

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import parse_record
from tests.data.formats.golden_rows import (
    ANSWERED,
    ASKED,
    CALL,
    CUT_OFF,
    INLINE,
    INSTRUCTED,
    THOUGHT,
    TOOL,
    TOOL_ASKED,
    TOOL_THOUGHT,
    TWO_TURNS,
    one_each,
    outcomes,
    reasons,
)

SPANS = "otel_genai/spans.jsonl"
OTLP = "otel_genai/otlp.jsonl"
EVENTS = "otel_genai/events.jsonl"
THINKING = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERED}"
ONE = [{"role": "system", "content": INSTRUCTED}, {"role": "user", "content": ASKED}]


def test_a_chat_span_with_its_system_instructions():
    one = one_each(SPANS)[1]
    assert one.messages == ONE
    assert (one.reasoning, one.content, one.finish_reason) == (THOUGHT, ANSWERED, "stop")
    assert (one.session, one.model, one.time) == ("session-1", "deepseek-r1", 1782900001.25)
    assert (one.temperature, one.top_p, one.completion_tokens) == (0.6, 0.95, 40)


def test_turns_with_reasoning_and_reasoning_within_the_text():
    two = one_each(SPANS)[2]
    assert two.messages == [
        *TWO_TURNS[:2],
        {"role": "assistant", "content": ANSWERED, "reasoning_content": THOUGHT},
        TWO_TURNS[3],
    ]
    assert two.content == INLINE and two.reasoning is None


def test_tool_calls_and_their_answers():
    found = one_each(SPANS)
    assert (
        found[3].tool_calls == [CALL]
        and found[3].reasoning == TOOL_THOUGHT
        and found[3].finish_reason == "stop"
    )
    assert found[3].template_arguments == {"tools": [TOOL]}
    assert found[4].messages == [
        {"role": "user", "content": TOOL_ASKED},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"open": true}'},
    ]


def test_a_cut_off_and_messages_on_an_event_of_the_span():
    found = one_each(SPANS)
    assert (found[5].reasoning, found[5].finish_reason, found[5].completion_tokens) == (
        CUT_OFF,
        "length",
        16,
    )
    assert (
        found[6].messages == ONE
        and found[6].reasoning == THOUGHT
        and found[6].session == "session-1"
    )


def test_rows_that_are_no_exchange():
    assert reasons(one_each(SPANS)) == {
        7: "content_not_logged",
        8: "not_a_generation",
        9: "not_a_generation",
        10: "prompt_not_messages",
        11: "truncated",
        12: "not_text",
        13: "not_json",
    }


def test_many_spans_of_one_otlp_row_are_told_apart():
    found = outcomes(OTLP)
    kinds = [
        outcome.reason if isinstance(outcome, Reject) else outcome.content or "cut"
        for outcome in found[1]
    ]
    assert kinds == [ANSWERED, "not_a_generation", ANSWERED, "cut", "content_not_logged"]
    choices = [outcome.choice for outcome in found[1] if isinstance(outcome, Exchange)]
    assert choices == [0, 2, 3]
    assert found[1][0].messages == ONE and found[1][0].time == 1782900001.25
    assert found[1][0].completion_tokens == 40, "an intValue is a text in OTLP JSON"
    assert found[1][2].completion_tokens is None, "counted over both choices of the response"
    assert found[1][4].detail.startswith("span 4: ")


def test_log_records_hold_the_same_attributes():
    (outcome,) = outcomes(OTLP)[3]
    assert outcome.messages == ONE and outcome.reasoning == THOUGHT and outcome.time == 1782900006.0


def test_a_row_without_spans_and_a_cut_one():
    found = outcomes(OTLP)
    assert [found[line][0].reason for line in (4, 5)] == ["not_a_generation", "not_json"]


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
    (outcome,) = parse_record("otel_genai", Record(Place("spans.parquet", 1), row))
    assert outcome.messages == [{"role": "user", "content": "Hi"}] and outcome.content == "Ho"
    assert (outcome.temperature, outcome.completion_tokens, outcome.time) == (0.6, 3, 1782900000.0)


def test_events_before_1_37_as_log_records_are_joined_by_their_span():
    found = outcomes(EVENTS)[1]
    first, second, third = found
    assert (first.messages, first.content, first.finish_reason) == (ONE, THINKING, "stop")
    assert (first.session, first.time, first.choice) == ("session-1", 1782900001.0, 0)
    assert (second.content, second.finish_reason, second.session) == (
        CUT_OFF,
        "length",
        "session-2",
    )
    assert (
        second.messages == [{"role": "user", "content": "List every museum."}]
        and second.choice == 1
    )
    assert third.reason == "content_not_logged" and third.detail.startswith("span 3: ")


def test_events_of_the_whole_prompt_and_the_whole_completion():
    (one,) = outcomes(EVENTS)[2]
    assert (one.messages, one.reasoning, one.content) == (ONE, THOUGHT, ANSWERED)
    assert (one.finish_reason, one.temperature, one.model) == ("stop", 0.6, "deepseek-r1")
    (as_attributes,) = outcomes(EVENTS)[5]
    assert (as_attributes.messages, as_attributes.content) == (TWO_TURNS, INLINE)


def test_events_of_a_span_hold_calls_of_tools_and_choices_by_their_index():
    (calling,) = outcomes(EVENTS)[3]
    assert calling.messages == [{"role": "user", "content": TOOL_ASKED}]
    assert (calling.tool_calls, calling.reasoning, calling.finish_reason) == (
        [CALL],
        TOOL_THOUGHT,
        "stop",
    )
    answered, other = outcomes(EVENTS)[4]
    assert answered.messages == [
        {"role": "user", "content": TOOL_ASKED},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": '{"open": true}', "tool_call_id": "call_1"},
    ]
    assert (answered.content, answered.choice, other.content, other.choice) == (
        THINKING,
        0,
        "Yes.",
        1,
    )


def test_older_rows_that_are_no_exchange():
    found = outcomes(EVENTS)
    reject = found[6][0]
    assert reject.reason == "content_not_logged" and "in one OTLP batch" in reject.detail
    assert [found[line][0].reason for line in (7, 8)] == ["prompt_not_messages", "truncated"]


def test_what_1_37_has_goes_before_what_was_before_it():
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": (
            '[{"role": "user", "parts": [{"type": "text", "content": "new"}]}]'
        ),
        "gen_ai.output.messages": (
            '[{"role": "assistant", "parts": [{"type": "text", "content": "yes"}], '
            '"finish_reason": "stop"}]'
        ),
        "gen_ai.prompt": '[{"role": "user", "content": "old"}]',
        "gen_ai.completion": '[{"role": "assistant", "content": "no"}]',
    }
    payload = json.dumps({"name": "chat r1", "attributes": said}).encode()
    (outcome,) = parse_record("otel_genai", Record(Place("spans.jsonl", 1), payload))
    assert (outcome.messages[0]["content"], outcome.content) == ("new", "yes")


def test_a_record_that_cannot_be_read_spoils_none_of_the_others():
    events = [
        {
            "eventName": "gen_ai.user.message",
            "body": {"kvlistValue": {"values": [pair("content", "Hi")]}},
        },
        {
            "eventName": "gen_ai.choice",
            "body": {"stringValue": '{"finish_reason": "stop", "message": {"content": "Ho"}}'},
        },
    ]
    records = [
        {**event, "traceId": "a", "spanId": "b", "attributes": [pair("gen_ai.system", "r1")]}
        for event in events
    ]
    broken = {"traceId": "a", "spanId": "b", "attributes": [{"key": 17}]}
    payload = json.dumps(
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [broken, *records]}]}]}
    ).encode()
    reject, outcome = parse_record("otel_genai", Record(Place("logs.jsonl", 1), payload))
    assert reject.reason == "wrong_type" and reject.detail.startswith("span 1: ")
    assert (outcome.messages, outcome.content) == ([{"role": "user", "content": "Hi"}], "Ho")


def pair(key, text):
    return {"key": key, "value": {"stringValue": text}}
