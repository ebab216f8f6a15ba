"""The privacy guard: what it counts, replaces, leaves out, and never does."""

import dataclasses
import json
import re
import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Exchange, Place, Reject
from outrider.data.privacy.detection import PersonalDataFinder
from outrider.data.privacy.guard import (
    IDS_ONLY,
    REGENERATE,
    PrivacyGuard,
    privacy_key,
)
from tests.data.personal import EXAMPLES
from tests.fuzzing import examples

KEY = b"k" * 32
REPORT = PrivacyConfig(mode="report")
SURROGATE = PrivacyConfig(mode="surrogate")
EMAIL, PHONE, CARD = "ada@lovelace.org", "+49 30 901820", "4111 1111 1111 1111"


def exchange(prompt="hello", reasoning="r", content="a", **fields):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    texts = {"messages": messages, "reasoning": reasoning, "content": content}
    return Exchange(**{"place": Place("log", 1), **texts, **fields})


def guard(config=SURROGATE, decode=None):
    return PrivacyGuard(config, KEY, decode)


def left_out(one, row):
    """Why the guard leaves an exchange out."""
    with pytest.raises(Reject) as caught:
        one.apply(row)
    return caught.value


def everything(one):
    """All the text of an exchange, joined."""
    return json.dumps(dataclasses.asdict(one), ensure_ascii=False)


def test_a_grammar_with_personal_data_is_dropped():
    with_mail = exchange(grammar=json.dumps({"choice": [EMAIL, "other"]}))
    assert guard(REPORT).apply(with_mail).grammar == with_mail.grammar
    assert guard().apply(with_mail) == dataclasses.replace(with_mail, grammar=None)
    plain = exchange(grammar='{"json_object": true}')
    assert guard().apply(plain) == plain


def test_a_report_counts_by_kind_and_field_and_changes_nothing(tmp_path):
    report = guard(REPORT)
    rows = [
        exchange(f"{EMAIL} and {PHONE}", content=f"I wrote to {EMAIL}", session="bob@lovelace.org"),
        exchange(f"{CARD}, {CARD}"),
        exchange("nothing"),
    ]
    assert [report.apply(row) for row in rows] == rows
    report.tally.write(REPORT, tmp_path / "privacy.json")
    summary = json.loads((tmp_path / "privacy.json").read_text())
    assert summary["found"] == {
        "EMAIL_ADDRESS": {"prompt": 1, "completion": 1, "metadata": 1},
        "PHONE_NUMBER": {"prompt": 1, "completion": 0, "metadata": 0},
        "CREDIT_CARD": {"prompt": 2, "completion": 0, "metadata": 0},
    }
    assert (
        summary["exchanges"],
        summary["with_any"],
        summary["in_completion"],
        summary["mode"],
    ) == (
        3,
        2,
        1,
        "report",
    )
    assert not re.search("lovelace|901820|4111", (tmp_path / "privacy.json").read_text())
    assert stat.S_IMODE((tmp_path / "privacy.json").stat().st_mode) == 0o600


def test_a_prompt_is_replaced_in_every_field_and_stays_a_conversation():
    arguments = json.dumps(
        {
            "to": EMAIL,
            "body": f"line\n{EMAIL}\t\u7535{PHONE}",
            "card": 4111111111111111,
            "n": [1, 2.5],
        }
    )
    messages = [
        {"role": "system", "content": f"You serve {EMAIL}."},
        {"role": "user", "name": "ada", "content": f"Mail me, {EMAIL.upper()}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "mail", "arguments": arguments},
                },
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "mail", "arguments": json.loads(arguments)},
                },
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "type": EMAIL,
            "content": f"sent to {EMAIL}, tel {PHONE.replace(' ', '')}",
        },
    ]
    template = {
        "documents": [{"title": EMAIL, "text": f"{CARD} {{x}}"}],
        "tools": [{"type": "function"}],
        "customer": {"phone": ["2127365000"]},  # a key is what precedes its value
        EMAIL: True,
    }
    one = exchange(messages=messages, template_arguments=template, session=EMAIL, tenant="acme")
    guarded = guard().apply(one)
    assert not re.search("lovelace|901820|4111|2127365", everything(guarded), re.IGNORECASE)
    assert guarded.messages[3]["type"] != EMAIL, "no key is spared"
    assert [message["role"] for message in guarded.messages] == [
        message["role"] for message in messages
    ]
    assert (
        guarded.messages[1]["name"] == "ada"
        and guarded.messages[2]["content"] is None
        and guarded.tenant == "acme"
    )
    calls = [call["function"]["arguments"] for call in guarded.messages[2]["tool_calls"]]
    assert json.loads(calls[0]) == calls[1], "as text and as an object the same"
    surrogate = calls[1]["to"]
    assert re.fullmatch(r"[a-z]{3}@[a-z]+\.example\.(com|net|org)", surrogate)
    assert calls[1]["body"].startswith(f"line\n{surrogate}\t\u7535+49 3") and calls[1]["n"] == [
        1,
        2.5,
    ]
    assert 4 * 10**15 < calls[1]["card"] < 5 * 10**15
    assert guarded.session == surrogate and list(guarded.template_arguments)[-1] == surrogate
    assert guarded.messages[1]["content"].lower() == f"mail me, {surrogate}"
    assert guarded.template_arguments["documents"][0]["title"] == surrogate
    assert (guarded.reasoning, guarded.content) == ("r", "a")


@pytest.mark.parametrize(
    "row",
    [
        exchange(EMAIL, content=f"Dear {EMAIL}"),
        exchange(EMAIL, reasoning=f"The mail is {EMAIL.upper()}."),
        exchange("tel 2127365000", content="I call (212) 736-5000"),
        exchange("tel 2127365000", content="2127365000"),  # where no word marks it as a number
        exchange(CARD, content="4111-1111-1111-1111"),
        exchange("hello", content=f"write to {EMAIL}"),
        exchange("hello", session=EMAIL, content=f"hello {EMAIL}"),
    ],
)
def test_a_response_with_a_value_is_left_out_because_it_would_not_be_the_targets_any_more(row):
    one = guard()
    reject = left_out(one, row)
    assert reject.reason == REGENERATE
    assert not re.search("lovelace|736|4111", reject.detail)
    assert (one.tally.left_out, one.tally.in_completion, one.tally.replaced) == (
        {REGENERATE: 1},
        1,
        0,
    )


@pytest.mark.parametrize("with_ids", [False, True])
def test_with_regenerate_the_response_gets_the_same_surrogates_and_is_marked(builder, with_ids):
    row = exchange(
        f"mail {EMAIL}",
        f"It is {EMAIL.upper()}.",
        f"Dear {EMAIL}",
        stop_reason=f"end {EMAIL}",
        model="r1",
    )
    if with_ids:
        ids = builder.tokenizer.encode(
            f"It is {EMAIL}\n</think>\n\nDear {EMAIL}", add_special_tokens=False
        )
        row = dataclasses.replace(row, completion_token_ids=ids, completion_tokens=len(ids))
    one = guard(PrivacyConfig(mode="surrogate", regenerate=True), decode=builder.decode)
    marked = one.apply(row)
    assert marked.regenerate and marked.model == "r1" and marked.finish_reason == "stop"
    assert "lovelace" not in everything(marked).lower()
    surrogate = marked.messages[1]["content"].removeprefix("mail ")
    assert surrogate in marked.content and marked.completion_token_ids is None
    assert (one.tally.to_regenerate, one.tally.replaced, one.tally.in_completion) == (1, 1, 1)
    assert not one.tally.left_out
    sequence = builder.build(marked)
    assert sequence.fidelity == "regenerate" and sequence.agrees_with_usage is None
    assert builder.decode(sequence.token_ids).count(surrogate) >= 2


def test_ids_are_dropped_only_where_the_prompts_text_changed(builder):
    def logged(prompt, **fields):
        one = exchange(prompt, **fields)
        sequence = builder.build(one)
        ids = sequence.token_ids
        start = sequence.completion_start
        return dataclasses.replace(
            one, prompt_token_ids=ids[:start], completion_token_ids=ids[start:]
        )

    one = guard(decode=builder.decode)
    clean = logged("hello")
    with_email = logged(f"write to {EMAIL}")
    with_session = logged("hello", session=EMAIL)
    assert one.apply(clean) is clean
    changed = one.apply(with_email)
    assert (
        changed.prompt_token_ids is None
        and changed.completion_token_ids == with_email.completion_token_ids
    )
    assert builder.build(one.apply(with_session)).fidelity == "exact"
    more = dataclasses.replace(with_email, messages=exchange(f"{EMAIL}, card {CARD}").messages)
    assert "4111" not in everything(one.apply(more)), "the text is examined where it is used"


SURROUNDING = st.text(st.sampled_from("ab .,:;\n\t\\\"'{}[]<>()=/-+@电话é09"), max_size=12)


@st.composite
def texts_with_values(draw):
    """Text around values, each attached to it or apart."""
    parts = [draw(SURROUNDING)]
    for _, word, value in draw(st.lists(st.sampled_from(EXAMPLES), max_size=4)):
        parts += [
            draw(st.sampled_from(["", " "])),
            word,
            draw(st.sampled_from([" ", ": ", "=", '": "', "\\n"])),
            value,
            draw(SURROUNDING),
        ]
    return "".join(parts)


EVERY = PrivacyConfig(mode="surrogate", entities=sorted({kind for kind, _, _ in EXAMPLES}))
FINDER = PersonalDataFinder(EVERY)


@examples(80)
@example(["at +49 30 901820]0"], "", False)
@given(st.lists(texts_with_values(), min_size=1, max_size=3), texts_with_values(), st.booleans())
def test_no_value_that_is_found_is_left_and_no_completion_is_changed(prompts, completion, as_json):
    contents = [json.dumps({"x": text, "y": [text, 4]}) if as_json else text for text in prompts]
    row = exchange(
        messages=[{"role": "user", "content": content} for content in contents], content=completion
    )
    values = {content[one.start : one.end] for content in contents for one in FINDER.find(content)}
    try:
        outcome = guard(EVERY).apply(row)
    except Reject as reject:
        assert reject.reason == REGENERATE and (values or FINDER.find(completion))
        return
    assert outcome.content == completion and not FINDER.find(completion)
    if not values:
        assert outcome == row
    for message in outcome.messages:
        for value in values:
            assert not re.search(
                rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", message["content"]
            )
        if as_json:
            assert json.loads(message["content"])["y"][1] == 4, "JSON stays JSON"


def test_a_key_of_the_runs_own_is_made_once_and_private(tmp_path):
    key_path = tmp_path / "traffic" / "privacy.key"
    key = privacy_key(REPORT, key_path)
    assert len(key) == 32 and key == privacy_key(SURROGATE, key_path)
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    (tmp_path / "mine").write_bytes(b"sixteen bytes of key")
    config = PrivacyConfig(mode="surrogate", key_file=str(tmp_path / "mine"))
    assert privacy_key(config, key_path) == b"sixteen bytes of key"
    (tmp_path / "mine").write_bytes(b"short")
    with pytest.raises(OutriderError, match=r"mine: 5 bytes are too short for a key"):
        privacy_key(config, key_path)
    with pytest.raises(
        OutriderError, match=r"privacy.key_file = '.*gone': cannot be read \(No such file"
    ):
        privacy_key(PrivacyConfig(mode="surrogate", key_file=str(tmp_path / "gone")), key_path)


def test_what_stands_in_the_ids_counts_not_what_the_messages_say(builder):
    ids = builder.tokenizer.encode(
        f"<｜User｜>{EMAIL}<｜Assistant｜><think>\n", add_special_tokens=False
    )
    answer = builder.tokenizer.encode(f"r\n</think>\n\n{EMAIL}", add_special_tokens=False)
    logged = {"prompt_token_ids": ids, "completion_token_ids": [5, 6]}
    one = guard(decode=builder.decode)
    injected = one.apply(exchange("hello", **logged))
    assert injected.prompt_token_ids is None, "a gateway put it in behind the messages"
    assert left_out(one, exchange("hello", messages=None, **logged)).reason == IDS_ONLY
    assert left_out(one, exchange("hello", completion_token_ids=answer)).reason == REGENERATE
