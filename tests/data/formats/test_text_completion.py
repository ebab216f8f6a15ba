"""Text completions: prompts without a template, and unparsed texts."""

import json

from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Place, Record
from outrider.data.formats import parse_record, read_exchanges
from outrider.data.ingest.sources import log_files
from outrider.data.privacy.guard import PrivacyGuard
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.formats.golden import formats, outcomes, said
from tests.data.formats.golden_rows import ANSWERED, ASKED, CUT_OFF, INLINE, INSTRUCTED, THOUGHT
from tests.data.logs import write_log

PROMPT = f"{INSTRUCTED}<｜User｜>{ASKED}<｜Assistant｜><think>\n"
TEXT = f"{THOUGHT}\n</think>\n\n{ANSWERED}"
END = "<｜end▁of▁sentence｜>"


def of_line(line):
    return [outcome for outcome in outcomes("openai_completions") if outcome.place.line == line]


def test_every_spelling_of_a_prompt():
    assert formats("openai_completions") == ["openai_pairs"]
    assert said(outcomes("openai_completions")) == [
        (None, TEXT, "stop"),
        (None, INLINE, "stop"),
        (None, CUT_OFF, "length"),
        (None, TEXT, "stop"),
        (None, TEXT, "stop"),
        (None, "One.", "stop"),
        (None, "Two.", "stop"),
        (None, TEXT, "stop"),
        (None, TEXT, "stop"),
        (None, " the Nissenhaus.", "stop"),
        (None, TEXT, "stop"),
        "stream_cut",
        "wrong_type",
        "not_text",
        "prompt_not_messages",
        "not_json",
    ]
    (plain,) = of_line(1)
    assert (plain.prompt_text, plain.messages, plain.session, plain.tenant) == (
        PROMPT,
        None,
        "s-1",
        "husum",
    )
    assert (plain.temperature, plain.top_p, plain.completion_tokens, plain.time) == (
        0.6,
        0.95,
        40,
        1782900000.0,
    )


def test_the_prompts_of_one_request_have_their_own_choices():
    assert [(one.prompt_text, one.choice) for one in of_line(4)] == [
        (PROMPT, 0),
        (PROMPT, 1),
        ("Name a museum:", 2),
        ("Name a museum:", 3),
    ]


def test_ids_go_before_texts():
    (as_ids,), (logged,) = of_line(5), of_line(6)
    assert (as_ids.prompt_token_ids, as_ids.prompt_text, as_ids.completion_token_ids) == (
        [0, 11, 12],
        None,
        None,
    )
    assert (logged.prompt_token_ids, logged.completion_token_ids) == ([0, 11, 12], [21, 22, 1])


def test_the_sequence_is_the_prompt_as_it_was_sent_and_the_text_as_it_came(text_target):
    builder = SequenceBuilder(text_target)
    expected = {1: (PROMPT, TEXT + END), 3: (PROMPT, CUT_OFF), 8: (PROMPT, TEXT + END)}
    for line, (prompt, completion) in expected.items():
        sequence = builder.build(of_line(line)[0])
        ids, start = sequence.token_ids, sequence.completion_start
        assert (
            sequence.fidelity == "retokenized"
            and ids[:start] == builder.tokenizer(prompt).input_ids
        )
        assert builder.tokenizer.decode(ids[start:]) == completion
    (echoed,) = of_line(7)
    assert not echoed.prompt_is_raw, "told not to, the engine put no begin token before the prompt"
    sequence = builder.build(echoed)
    assert builder.tokenizer.decode(sequence.token_ids) == f"Name a museum: the Nissenhaus.{END}"
    # A text without `</think>` is complete although the prompt opened `<think>`: no parser removed
    # anything.
    payload = {
        "request": {"prompt": PROMPT},
        "response": {"choices": [{"text": "No thoughts.", "finish_reason": "stop"}]},
    }
    (bare,) = parse_record("openai_pairs", Record(Place("log", 1), json.dumps(payload).encode()))
    sequence = builder.build(bare)
    assert (
        builder.tokenizer.decode(sequence.token_ids[sequence.completion_start :])
        == f"No thoughts.{END}"
    )


def test_halves_that_stand_apart(tmp_path):
    request = {"id": "r1", "model": "r1", "prompt": PROMPT, "temperature": 0.5}
    response = {
        "id": "r1",
        "object": "text_completion",
        "choices": [{"text": TEXT, "finish_reason": "stop"}],
    }
    write_log(tmp_path / "joined.jsonl", [request, response])
    (joined,) = read_exchanges(log_files(str(tmp_path / "joined.jsonl")))
    batch = [
        {
            "custom_id": "a",
            "url": "/v1/completions",
            "body": {"model": "r1", "prompt": PROMPT, "temperature": 0.5},
        },
        {"custom_id": "a", "response": {"status_code": 200, "body": response}, "error": None},
    ]
    write_log(tmp_path / "batch.jsonl", batch)
    (batched,) = read_exchanges(log_files(str(tmp_path / "batch.jsonl")))
    for one in (joined, batched):
        assert (one.prompt_text, one.content, one.temperature) == (PROMPT, TEXT, 0.5)


def test_surrogates_stand_in_a_prompt_that_is_text():
    payload = {
        "request": {"prompt": "Write to ada@lovelace.org:"},
        "response": {"choices": [{"text": " done", "finish_reason": "stop"}]},
    }
    (one,) = parse_record("openai_pairs", Record(Place("log", 1), json.dumps(payload).encode()))
    changed = PrivacyGuard(PrivacyConfig(mode="surrogate"), b"k" * 32).apply(one)
    assert changed.prompt_text.startswith("Write to ") and "lovelace" not in changed.prompt_text
    assert changed.content == " done" and changed.prompt_is_raw
