"""Langfuse's exports of observations: JSON lines and Parquet of blob storage, JSON of the UI."""

import dataclasses
import json

import pytest

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import parse_record
from tests.data.formats.golden import GOLDEN
from tests.data.formats.golden_rows import (
    ANSWERED,
    ASKED,
    CALL,
    CUT_OFF,
    INLINE,
    INSTRUCTED,
    THOUGHT,
    TOOL,
    TWO_TURNS,
    one_each,
    reasons,
)

LINES = "langfuse/observations_v2.jsonl"


def changed(line, **changes):
    row = json.loads((GOLDEN / LINES).read_text(encoding="utf-8").splitlines()[line - 1])
    (outcome,) = parse_record(
        "langfuse", Record(Place("log", 1), json.dumps({**row, **changes}).encode())
    )
    return outcome


def test_a_generation_and_its_context():
    one = one_each(LINES)[1]
    assert one.messages == [
        {"role": "system", "content": INSTRUCTED},
        {"role": "user", "content": ASKED},
    ]
    assert (one.reasoning, one.content, one.finish_reason) == (THOUGHT, ANSWERED, "stop")
    assert (one.session, one.tenant, one.route) == ("session-1", "acme", "hours")
    assert (one.model, one.time, one.completion_tokens) == ("deepseek-r1", 1782900001.25, 40)
    assert (one.temperature, one.top_p) == (0.6, 0.95)


def test_an_output_that_is_text_and_parameters_that_are_unset():
    found = one_each(LINES)
    assert found[2].messages == TWO_TURNS and found[2].content == INLINE
    assert (found[2].temperature, found[2].top_p) == (None, None)
    assert found[5].content == '{"open": "10:00", "until": "13:00"}', (
        "an answer that is JSON stays the text it was"
    )
    assert found[5].temperature == 0.6


def test_tools_and_reasoning_tokens_that_are_counted_apart():
    three = one_each(LINES)[3]
    assert three.template_arguments == {"tools": [TOOL]} and three.tool_calls == [CALL]
    assert three.completion_tokens == 40
    assert (three.session, three.user) == (None, "user-7")


def test_a_cut_off_is_told_by_the_limit():
    four = one_each(LINES)[4]
    assert (four.reasoning, four.finish_reason, four.completion_tokens) == (CUT_OFF, "length", 16)


def test_rows_that_are_no_exchange():
    assert reasons(one_each(LINES)) == {
        6: "not_a_generation",
        7: "content_not_logged",
        8: "prompt_not_messages",
        9: "not_finished",
        10: "error_response",
        11: "truncated",
        12: "not_json",
    }


def test_parquet_holds_the_same_with_maps_and_times_of_its_own():
    lines, table = one_each(LINES), one_each("langfuse/observations_v2.parquet")
    assert len(table) == 7
    for line, outcome in table.items():
        if isinstance(outcome, Reject):
            assert outcome.reason == lines[line].reason
            continue
        same = dataclasses.replace(outcome, place=lines[line].place)
        if line == 5:  # the table's row also has tools, which Langfuse took out of the input
            name = same.template_arguments["tools"][0]["function"]["name"]
            assert name == "opening_hours"
            same = dataclasses.replace(same, template_arguments={})
        assert same == lines[line]


def test_the_ui_writes_camel_case_and_objects():
    (one,) = one_each("langfuse/observations.json").values()
    assert (one.reasoning, one.content, one.session, one.time) == (
        THOUGHT,
        ANSWERED,
        "session-1",
        1782900001.25,
    )
    assert (one.temperature, one.completion_tokens, one.model) == (0.6, 40, "deepseek-r1")


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
    outcome = changed(1, output=output)
    assert isinstance(outcome, Exchange) and outcome.content == content
    assert outcome.finish_reason == ("length" if "length" in output else "stop")
