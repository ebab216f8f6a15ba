import json

import pytest

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import openai_pairs
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.formats.golden import formats, outcomes, said

THOUGHT, ANSWER = (
    "The posting asks for 3 years of Go; the résumé has 5.\n",
    '\n\n{"verdict": "advance", "met": 1, "of": 1}',
)
SECOND_THOUGHT = "6 is more than 5, so the requirement is not met.\n"
SECOND_ANSWER = '\n\n{"verdict": "reject", "met": 0, "of": 1}'


def test_a_gateways_log():
    found = outcomes("openai_pairs")
    assert formats("openai_pairs") == ["openai_pairs"]
    assert said(found) == [
        (THOUGHT, ANSWER, "stop"),
        (SECOND_THOUGHT.strip(), SECOND_ANSWER.strip(), "stop"),
        ("I should look her up.\n", None, "stop"),
        (THOUGHT, ANSWER, "stop"),
        (SECOND_THOUGHT, SECOND_ANSWER, "stop"),
        (None, "The posting asks for", "length"),
        (None, f'<think>\n{THOUGHT}</think>\n\n{{"verdict": "advance"', "stop"),
        (THOUGHT, ANSWER, "stop"),
        "error_response",
        "not_json",
    ]
    first, second, called = found[:3]
    assert (first.session, first.tenant, first.route, first.time) == (
        "s-1",
        "harrow",
        "screen",
        1772438400.0,
    )
    assert (first.temperature, first.top_p, first.model) == (0.6, 0.95, "deepseek-ai/DeepSeek-R1")
    assert len(second.messages) == 4 and second.time == 1772438401.0
    assert called.tool_calls[0]["function"]["name"] == "find_candidate"
    assert called.template_arguments["tools"][0]["function"]["name"] == "find_candidate"
    assert called.messages[1]["content"] == "Find\nInes Maro" and called.time == 1772438402.0


def test_each_choice_is_an_exchange_of_its_own():
    found = [outcome for outcome in outcomes("openai_pairs") if outcome.place.line == 4]
    assert [outcome.choice for outcome in found] == [0, 1]
    # The engine counts the tokens of all choices together, so neither count is known.
    assert [outcome.completion_tokens for outcome in found] == [None, None]


def test_stop_strings_are_told_where_the_log_does_not_say_what_ended_the_response():
    (unsaid,) = [outcome for outcome in outcomes("openai_pairs") if outcome.place.line == 6]
    assert unsaid.stop_strings == ("}",)
    row = {
        "request": {"messages": [{"role": "user", "content": "u"}], "stop": ["}"]},
        "response": {
            "choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": None}]
        },
    }
    (said_so,) = openai_pairs.parse(Record(Place("log", 1), json.dumps(row).encode()))
    assert said_so.stop_strings == ()


def test_streams_are_put_together_again():
    found = outcomes("openai_streams")
    assert formats("openai_streams") == ["openai_pairs"]
    assert said(found) == [
        (THOUGHT, ANSWER, "stop"),
        (SECOND_THOUGHT, SECOND_ANSWER, "stop"),
        "stream_cut",
        ("I should look her up.\n", "", "stop"),
        (THOUGHT, ANSWER, "stop"),
        ("The posting asks", "", "length"),
        "error_response",
        "stream_cut",
        "wrong_type",
    ]
    with_ids, without, _, called, with_some_ids, *_ = found
    assert with_ids.prompt_token_ids == [0, 11, 12, 13]
    assert with_ids.completion_token_ids == [21, 22, 23, 24, 25, 26, 9, 28, 29, 30, 31, 32, 1]
    assert with_ids.completion_tokens == 13 and without.completion_token_ids is None
    assert called.tool_calls == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "find_candidate", "arguments": '{"name": "Ines Maro"}'},
        }
    ]
    # The engine counted 95 tokens: the ids are incomplete, the text is not.
    assert (with_some_ids.completion_token_ids, with_some_ids.completion_tokens) == (None, 95)


def test_one_bad_choice_does_not_spoil_the_others():
    row = {
        "request": {"messages": [{"role": "user", "content": "u"}]},
        "response": {
            "choices": [
                {"message": {"reasoning": "r", "content": "a"}, "finish_reason": "stop"},
                {"message": {}, "finish_reason": "stop"},
                {"message": {"content": "a"}, "finish_reason": "content_filter"},
                None,
            ]
        },
    }
    found = openai_pairs.parse(Record(Place("log", 1), json.dumps(row).encode()))
    assert said(found) == [("r", "a", "stop"), "empty_response", "not_finished", "wrong_type"]


@pytest.mark.parametrize(
    "name", ["openai_pairs", "openai_streams", "openai_joined", "openai_chunks", "openai_batch"]
)
def test_golden_exchanges_become_sequences(text_target, name):
    """Retokenized completions equal the engine's text, however they were logged."""
    builder = SequenceBuilder(text_target)
    written = set()
    for outcome in outcomes(name):
        if isinstance(outcome, Exchange) and outcome.prompt_token_ids is None:
            try:
                sequence = builder.build(outcome)
            except Reject as reject:
                written.add(reject.reason)
            else:
                written.add(
                    builder.tokenizer.decode(sequence.token_ids[sequence.completion_start :])
                )
    end = "<｜end▁of▁sentence｜>"
    second = f"{SECOND_THOUGHT}</think>{SECOND_ANSWER}{end}"
    assert second in written
    assert written <= {
        second,
        f"{THOUGHT}</think>{ANSWER}{end}",
        "tool_calls_without_ids",  # nano R1's template does not render one
        "The posting asks for",
        "The posting asks",
        f'{THOUGHT}</think>\n\n{{"verdict": "advance"',
    }
