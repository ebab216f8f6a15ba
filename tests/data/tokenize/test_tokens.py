"""Reconstructed text gives the engine's ids, for each way of cutting at `</think>`."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.exchange import Exchange, Place, Reject
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import WORDS
from tests.fuzzing import examples

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def exchange(**fields):
    return Exchange(**{"place": Place("log", 1), "messages": MESSAGES, **fields})


def completion(builder, **fields):
    """The reconstructed completion as text, with its end token."""
    sequence = builder.build(exchange(**fields))
    return builder.tokenizer.decode(
        sequence.token_ids[sequence.completion_start :], skip_special_tokens=False
    )


def vllm_parser(text):
    """vLLM's deepseek_r1 reasoning parser: cuts at `</think>` and keeps every character."""
    reasoning, end, content = text.partition("</think>")
    return {"reasoning": reasoning, "content": (content or None) if end else None}


EOS = "<｜end▁of▁sentence｜>"


def test_the_prompt_is_the_targets_template(builder):
    """Earlier reasoning is dropped, and a message may quote special tokens."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a <think> b"},
        {"role": "assistant", "content": "why\n</think>\n\nbecause"},
        {"role": "user", "content": "again"},
    ]
    sequence = builder.build(exchange(messages=messages, reasoning="r", content="a"))
    assert sequence.prompt_text == (
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>a <think> b<｜Assistant｜>\n\nbecause"
        "<｜end▁of▁sentence｜><｜User｜>again<｜Assistant｜><think>\n"
    )
    assert sequence.token_ids[: sequence.completion_start] == builder.tokenizer.encode(
        sequence.prompt_text, add_special_tokens=False
    )
    assert sequence.fidelity == "retokenized"
    assert (sequence.temperature, sequence.top_p) == (0.6, 0.95)  # the target's generation_config


R_A = {"reasoning": "r", "content": "a"}
BEFORE_STOP = {"reasoning": "r\n", "content": "\n\na}"}
INCLUDED_STOP = BEFORE_STOP | {"content": "\n\na}END", "stop_reason": "END"}
STOPPED = "r\n</think>\n\na}"
EMPTY = "\n</think>\n\na"
EMITTED = "r\n</think>\n\na"
COUNTED = [
    # Every spelling of reasoning.
    (vllm_parser(EMITTED), None, EMITTED + EOS),
    (R_A, None, EMITTED + EOS),  # a parser that strips
    ({"content": EMITTED}, None, EMITTED + EOS),
    ({"content": "<think>\n" + EMITTED}, None, EMITTED + EOS),
    # How a response ended, without a count.
    ({"reasoning": "cut he", "finish_reason": "length"}, None, "cut he"),
    ({"content": "cut he", "finish_reason": "length"}, None, "cut he"),
    (
        BEFORE_STOP | {"content": "\n\ncut he", "finish_reason": "length"},
        None,
        "r\n</think>\n\ncut he",
    ),
    # Only the count shows that a response without content ended, and with which tokens.
    ({"reasoning": "r\n", "content": None}, "r\n</think>" + EOS, "r\n</think>" + EOS),
    ({"reasoning": "r\n", "content": None}, "r\n" + EOS, "r\n" + EOS),
    # Gateways that repeat the template's <think>.
    ({"reasoning": "<think>\nr\n", "content": "\n\na"}, None, EMITTED + EOS),
    ({"reasoning": "<think>r", "content": "a"}, None, EMITTED + EOS),
    ({"reasoning": "\n", "content": "\n\na"}, None, "\n</think>\n\na" + EOS),
    ({"reasoning": "r\n", "content": "\n\na", "stop_reason": "END"}, None, "r\n</think>\n\na"),
    (
        {"reasoning": "r\n", "content": "\n\na", "stop_reason": 2},
        None,
        "r\n</think>\n\na<｜▁pad▁｜>",
    ),
    ({"reasoning": "", "content": EMITTED}, None, EMITTED + EOS),
    # The engine's token count decides between readings.
    (R_A, "r</think>a" + EOS, "r</think>a" + EOS),
    (R_A, EMITTED + EOS, EMITTED + EOS),
    ({"content": "a"}, EMPTY + EOS, EMPTY + EOS),
    # Whether the end token or a stop string ended it was not logged: only the count can decide.
    (BEFORE_STOP | {"stop_strings": ("!", "END")}, None, STOPPED),
    (BEFORE_STOP | {"stop_strings": ("!", "END")}, STOPPED + EOS, STOPPED + EOS),
    (BEFORE_STOP | {"stop_strings": ("!", "END")}, STOPPED + "END", STOPPED + "END"),
    # The log names the string, which is not in the text; the count shows that the tokens have it.
    (BEFORE_STOP | {"stop_reason": "END"}, STOPPED + "END", STOPPED + "END"),
    # include_stop_str_in_output: the text has it already.
    (INCLUDED_STOP, None, STOPPED + "END"),
    (INCLUDED_STOP, STOPPED + "END", STOPPED + "END"),
    # Empty reasoning, also from a parser that strips.
    ({"reasoning": "\n", "content": "\n\na"}, None, EMPTY + EOS),
    ({"reasoning": "", "content": "a"}, None, EMPTY + EOS),
    ({"reasoning": "", "content": "a"}, EMPTY + EOS, EMPTY + EOS),
    ({"reasoning": None, "content": "a"}, EMPTY + EOS, EMPTY + EOS),
    ({"reasoning": "", "content": "\n\na"}, "</think>\n\na" + EOS, "</think>\n\na" + EOS),
]
"""Fields, the text that the engine counted, and the completion."""


@pytest.mark.parametrize(("fields", "counted", "text"), COUNTED)
def test_the_engines_token_count_decides_between_readings(builder, fields, counted, text):
    count = None if counted is None else len(builder._encode(counted))
    assert completion(builder, **fields, completion_tokens=count) == text


def test_a_count_that_no_reading_has(builder):
    assert builder.build(exchange(**R_A, completion_tokens=999)).agrees_with_usage is False
    assert reason(builder, reasoning="", content="a", completion_tokens=500) == "reasoning_missing"
    assert reason(builder, reasoning=None, content="a") == "reasoning_missing"


@pytest.mark.parametrize("counted", [None, 1, 500])
def test_no_end_is_invented_for_a_response_that_may_be_cut(builder, counted):
    fields = {"reasoning": "The candidate has", "content": None, "completion_tokens": counted}
    assert reason(builder, **fields) == "not_finished"
    assert completion(builder, **fields, finish_reason="length") == "The candidate has"


def test_a_count_shows_whether_a_response_without_a_logged_end_was_cut(builder):
    ended = completion(builder, **R_A, end_is_assumed=True)
    whole = builder.build(exchange(**R_A)).token_ids
    prompt = builder.build(exchange(**R_A)).completion_start
    count = len(whole) - prompt
    assert ended == completion(builder, **R_A)

    def ids(counted):
        return builder.build(exchange(**R_A, end_is_assumed=True, completion_tokens=counted))

    assert ids(count).token_ids == whole
    assert ids(count - 1).token_ids == whole[:-1]
    assert ids(count + 7).agrees_with_usage is False


def test_without_a_count_the_text_s_tokens_show_whether_it_reached_its_limit(builder):
    whole = builder.build(exchange(**R_A))
    tokens = len(whole.token_ids) - whole.completion_start
    for limit in (4 * tokens, 1.2 * tokens):
        assert completion(builder, **R_A, token_limit=limit) == completion(builder, **R_A)
    for limit in (1.05 * tokens, tokens, tokens - 1):
        assert reason(builder, **R_A, token_limit=limit) == "not_finished"
    counted = {"token_limit": tokens, "completion_tokens": tokens}
    assert builder.build(exchange(**R_A, **counted)).agrees_with_usage


@pytest.mark.parametrize(
    ("begun", "fields", "text"),
    [
        # A continued answer. vLLM's parser sees no </think> and treats all of it as reasoning;
        # others as content.
        ('{"verdict":', {"reasoning": ' "advance"}'}, ' "advance"}'),
        ('{"verdict":', {"content": ' "advance"}'}, ' "advance"}'),
        # Continued reasoning.
        ("<think>\nFirst,", {"reasoning": " why\n", "content": "\n\na"}, " why\n</think>\n\na"),
        ("<think>\nFirst,", {"reasoning": "why", "content": "a"}, "why\n</think>\n\na"),
        ("<think>\nFirst,", {"content": "why\n</think>\n\na"}, "why\n</think>\n\na"),
    ],
)
def test_prefilled_turns(builder, begun, fields, text):
    fields |= {
        "messages": [*MESSAGES, {"role": "assistant", "content": begun}],
        "template_arguments": {"continue_final_message": True, "add_generation_prompt": False},
    }
    assert builder.build(exchange(**fields)).prompt_text.endswith("<｜Assistant｜>" + begun)
    assert completion(builder, **fields) == text + EOS


def reason(builder, **fields):
    with pytest.raises(Reject) as caught:
        builder.build(exchange(**fields))
    return caught.value.reason


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"constraint": "grammar"}, "grammar"),
        ({"constraint": "other_sampling"}, "other_sampling"),
        ({"min_p": 0.05}, "min_p"),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"frequency_penalty": -0.5}, "penalties"),
        ({"repetition_penalty": 1.05}, "penalties"),
    ],
)
def test_tokens_of_another_distribution_have_a_constraint(builder, fields, expected, text_target):
    text = {"reasoning": "r", "content": "a"}
    sequence = builder.build(exchange(**text, **fields))
    assert sequence.constraint == expected
    assert sequence.token_ids == builder.build(exchange(**text)).token_ids
    for ids in ({}, {"prompt_token_ids": [0, 5]}):
        # Probabilistic drafts are accepted against the distribution, which is not known.
        soft = SequenceBuilder(text_target, hard_labels=False)
        assert reason(soft, **text, **fields, **ids) == expected
        # The engine would generate a new response without the constraint.
        assert reason(builder, **text, **fields, **ids, regenerate=True) == expected
        assert reason(builder, **text, **fields | {"constraint": "beam_search"}) == "beam_search"
    off = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1}
    neutral = SequenceBuilder(text_target, hard_labels=False).build(exchange(**text, **off))
    assert (neutral.top_k, neutral.constraint) == (0, "")


def test_top_k_is_kept_and_the_targets_defaults_apply_where_a_request_has_none(
    text_target, tmp_path
):
    shutil.copytree(text_target, tmp_path / "target")
    defaults = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    (tmp_path / "target/generation_config.json").write_text(json.dumps(defaults))
    builder = SequenceBuilder(tmp_path / "target")
    text = {"reasoning": "r", "content": "a"}
    assert builder.build(exchange(**text)).constraint == "penalties"
    text["repetition_penalty"] = 1.0
    top_ks = [builder.build(exchange(**text, top_k=top_k)).top_k for top_k in (None, 0, -1, 7, 1e9)]
    assert top_ks == [20, 0, 0, 7, 0]


def test_logged_ids_are_used_untouched(builder):
    ids = builder.tokenizer.encode("r\n</think>\n\na", add_special_tokens=False)
    crooked = [
        *builder.tokenizer.convert_tokens_to_ids(["a", "b"]),
        *ids,
    ]  # not what encoding its text would give
    sequence = builder.build(
        exchange(
            prompt_token_ids=[0, 7, 8], completion_token_ids=crooked, reasoning="x", content="y"
        )
    )
    assert sequence.token_ids == [0, 7, 8, *crooked]
    assert (sequence.completion_start, sequence.fidelity) == (3, "exact")


@examples(150)
@given(
    st.lists(st.one_of(st.sampled_from(WORDS), st.characters(exclude_categories=["Cs"]))),
    st.booleans(),
)
def test_any_text_comes_back_as_it_was(builder, characters, cut):
    reasoning = "".join(characters) + "\n"
    emitted = f"{reasoning}</think>\n\n{''.join(reversed(characters))}."
    if "</think>" in reasoning:
        return
    rebuilt = completion(builder, **vllm_parser(emitted), finish_reason="length" if cut else "stop")
    assert rebuilt == emitted + ("" if cut else EOS)


OPENED = "<think>\n"


def test_the_prompts_count_decides_whether_the_endpoints_template_opens_think(builder):
    text = builder.build(exchange(reasoning="r", content="a")).prompt_text
    assert text.endswith(OPENED)
    for opened in (True, False):
        prompt = text if opened else text.removesuffix(OPENED)
        logged = exchange(reasoning="r", content="a", prompt_tokens=len(builder._encode(prompt)))
        sequence = builder.build(logged)
        assert sequence.prompt_text == prompt and sequence.prompt_agrees_with_usage
        emitted = builder.decode(sequence.token_ids[sequence.completion_start :])
        # A template that does not open <think> leaves that to the target.
        assert emitted == ("" if opened else OPENED) + "r\n</think>\n\na" + EOS
    uncounted = builder.build(exchange(reasoning="r", content="a", prompt_tokens=3))
    assert uncounted.prompt_text == text and uncounted.prompt_agrees_with_usage is False
