"""Helicone's export, as its command-line tool writes it."""

from tests.data.formats.golden_rows import (
    ANSWERED,
    ASKED,
    CALL,
    CUT_OFF,
    INLINE,
    INSTRUCTED,
    THOUGHT,
    TOOL,
    TOOL_THOUGHT,
    TWO_TURNS,
    one_each,
    reasons,
)


def test_a_request_and_what_helicone_logs_beside_it():
    one = one_each("helicone/requests.jsonl")[1]
    assert one.messages == [
        {"role": "system", "content": INSTRUCTED},
        {"role": "user", "content": ASKED},
    ]
    assert (one.reasoning, one.content, one.finish_reason) == (THOUGHT, ANSWERED, "stop")
    assert (one.session, one.tenant, one.model, one.time) == (
        "session-1",
        "acme",
        "deepseek-r1",
        1782900001.0,
    )
    assert (one.temperature, one.top_p, one.completion_tokens) == (0.6, 0.95, 40)


def test_turns_tool_calls_and_a_cut_off():
    found = one_each("helicone/requests.jsonl")
    assert (
        found[2].messages == TWO_TURNS and found[2].content == INLINE and found[2].reasoning is None
    )
    assert (
        found[3].tool_calls == [CALL]
        and found[3].reasoning == TOOL_THOUGHT
        and found[3].finish_reason == "stop"
    )
    assert found[3].template_arguments == {"tools": [TOOL]}
    assert (found[4].reasoning, found[4].content, found[4].finish_reason) == (
        CUT_OFF,
        None,
        "length",
    )


def test_a_stream_is_read_from_its_chunks_and_not_from_what_helicone_made_of_them():
    found = one_each("helicone/requests.jsonl")
    assert (found[5].reasoning, found[5].content, found[5].completion_tokens) == (
        THOUGHT,
        ANSWERED,
        41,
    )
    assert found[5].finish_reason == "stop"
    assert found[6].reason == "stream_not_kept"


def test_rows_that_are_no_exchange():
    assert reasons(one_each("helicone/requests.jsonl")) == {
        6: "stream_not_kept",
        7: "error_response",
        8: "cache_hit",
        9: "not_a_generation",
        10: "content_not_logged",
        11: "not_json",
    }


def test_the_json_export_holds_the_same():
    lines, array = one_each("helicone/requests.jsonl"), one_each("helicone/requests.json")
    assert [array[1].content, array[2].content] == [lines[1].content, lines[2].content] and len(
        array
    ) == 2
