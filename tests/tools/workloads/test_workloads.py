"""Prompts of the four workloads and of general traffic, from a few invented rows of each corpus.

OUTRIDER_CORPUS names the folder of the corpora themselves; the digests of their prompts are then
compared, too.
"""

import gzip
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from tools.workloads import (
    arithmetic,
    customer_chat,
    document_extraction,
    general,
    resume_screening,
)
from tools.workloads.sessions import Message, Session, Turn
from tools.workloads.workloads import DIGESTS, WORKLOADS, digest, planned

CORPUS = os.environ.get("OUTRIDER_CORPUS")
NEEDS_CORPUS = [name for name in WORKLOADS if name != "resume_screening"]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))


def dialogue(*texts: str) -> dict[str, Any]:
    """The customer's messages, each followed by an answer."""
    turns = []
    for text in texts:
        turns.append({"speaker": "user", "text": text})
        turns.append({"speaker": "assistant", "text": f"The corpus answers: {text}"})
    return {"id": f"dlg-{len(texts)}", "turns": turns}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A few rows of each corpus's schema."""
    chats = [dialogue(f"Could I have {count} teas?", "And a bun.") for count in range(30)]
    chats += [dialogue("A  juice, please.", "Apple.", "Yes."), dialogue("Only one message")]
    chats += [dialogue("Could I have 3 teas", "This opening is not the first of its kind.")]
    write_rows(tmp_path / "taskmaster4_dialogues.jsonl.gz", chats)
    receipts = [
        {"id": f"{number:03d}", "ocr_text": f"SHOP {number % 40}\nTOTAL 1.00", "fields": {}}
        for number in range(42)
    ]
    write_rows(tmp_path / "sroie_receipts.jsonl.gz", receipts)
    questions = [{"question": f"What is {n % 8} + 1?", "answer": "#### 1"} for n in range(10)]
    write_rows(tmp_path / "gsm8k_train.jsonl.gz", questions)
    banking = [{"text": f"Where is card {number % 9}?", "intent": "card"} for number in range(12)]
    write_rows(tmp_path / "banking77_train.jsonl.gz", banking)
    return tmp_path


def contents(session: Session) -> list[str]:
    """The last message of each request."""
    return [turn.messages[-1].content for turn in session.turns]


def test_a_chat_has_the_customers_messages_and_no_answers_of_the_corpus(corpus: Path) -> None:
    chats = customer_chat.sessions(corpus)
    assert len(chats) == 31, "one message, and an opening that another dialogue has"
    assert ["A juice, please.", "Apple.", "Yes."] in map(contents, chats)
    for chat in chats:
        first, *later = chat.turns
        assert [message.role for message in first.messages] == ["system", "user"]
        assert all(turn.messages[0].role == "user" and len(turn.messages) == 1 for turn in later)
    assert "The corpus answers" not in repr(chats)
    assert len({chat.user for chat in chats}) == len(chats)


def test_long_chats_come_before_short_ones(corpus: Path) -> None:
    (chat,) = customer_chat.sessions(corpus, responses=3)
    assert len(chat.turns) == 3


def test_a_receipt_is_one_session_in_two_formats(corpus: Path) -> None:
    sessions = document_extraction.sessions(corpus)
    assert len(sessions) == 40, "two receipts have the same text as others"
    receipts = set()
    formats = set()
    frames = set()
    for session in sessions:
        texts = ["\n".join(m.content for m in turn.messages) for turn in session.turns]
        (receipt,) = {text[text.index("SHOP") :].split("\nTOTAL")[0] for text in texts}
        receipts.add(receipt)
        names = [turn.response_format["json_schema"]["name"] for turn in session.turns]
        assert len(set(names)) == 2
        formats.update(names)
        frames |= {text.replace(receipt, "") for text in texts}
    assert len(receipts) == 40
    assert len(formats) >= 6
    assert len(frames) >= 20


@pytest.mark.parametrize("name", document_extraction.FORMATS)
def test_a_schema_is_valid_and_its_instructions_name_what_it_wants(name: str) -> None:
    form = document_extraction.FORMATS[name]
    jsonschema.Draft202012Validator.check_schema(form.schema)
    assert len(set(form.instructions)) >= 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, form.schema)


def test_resumes_have_20_layouts_of_the_same_facts() -> None:
    rng = random.Random(0)
    posting = resume_screening.new_posting(rng)
    candidate = resume_screening.new_candidate(rng, posting)
    texts = {layout(candidate, order) for layout, order in resume_screening.LAYOUTS}
    assert len(texts) == 20
    facts = [candidate.name, candidate.city, candidate.degree, candidate.summary]
    facts += [job.employer for job in candidate.jobs]
    facts += list(candidate.skills)
    for text in texts:
        assert all(fact in text for fact in facts), text


def test_a_posting_is_one_session_of_three_candidates() -> None:
    sessions = resume_screening.sessions(60)
    assert [len(session.turns) for session in sessions] == [3] * 20
    prompts = [content for session in sessions for content in contents(session)]
    assert len(set(prompts)) == 60
    instructions = {prompt.rsplit("\n\n", 1)[1] for prompt in prompts}
    assert len(instructions & set(resume_screening.INSTRUCTIONS)) >= 6
    for session in sessions:
        assert len({content.rsplit("\n\n", 1)[1] for content in contents(session)}) == 1


def test_questions_are_distinct_and_without_an_instruction(corpus: Path) -> None:
    sessions = arithmetic.sessions(corpus)
    questions = [content for session in sessions for content in contents(session)]
    assert sorted(questions) == [f"What is {number} + 1?" for number in range(8)]
    assert [len(session.turns) for session in sessions] == [3, 3, 2]


def test_general_traffic_has_nothing_that_is_measured(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the corpora, of which the workloads do not take everything
    monkeypatch.setattr(arithmetic.sessions, "__defaults__", (3,))
    monkeypatch.setattr(customer_chat.sessions, "__defaults__", (13,))
    monkeypatch.setitem(general.RESPONSES, "resumes", 50)
    prompts = [contents(session)[0] for session in general.sessions(corpus)]
    assert len(prompts) == len(set(prompts)) == 5 + 9 + 25 + 2 * 24 + 50
    asked = {content for chat in arithmetic.sessions(corpus) for content in contents(chat)}
    asked |= {contents(chat)[0] for chat in customer_chat.sessions(corpus)}
    asked |= {content for chat in resume_screening.sessions(60) for content in contents(chat)}
    assert not asked & set(prompts)
    measured = " ".join(
        message.content
        for session in document_extraction.sessions(corpus)[24:]
        for turn in session.turns
        for message in turn.messages
    )
    receipts = {prompt.split("\n\n")[1] for prompt in prompts if "\nTOTAL" in prompt}
    assert len(receipts) == 24
    assert not any(receipt in measured for receipt in receipts)


def fixed_sessions(name: str) -> list[Session]:
    """The sessions of the digest; skips if they need a corpus that is not given."""
    if name in NEEDS_CORPUS and CORPUS is None:
        pytest.skip("OUTRIDER_CORPUS is not set")
    return planned(name, Path(CORPUS or "no corpus"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_and_sampling_are_those_that_were_fixed(name: str) -> None:
    sessions = fixed_sessions(name)
    assert sum(len(session.turns) for session in sessions) >= 1200
    assert len({repr(session.turns) for session in sessions}) == len(sessions)


@pytest.mark.parametrize("name", NEEDS_CORPUS)
def test_prompts_of_another_corpus_are_refused(name: str, corpus: Path) -> None:
    with pytest.raises(OutriderError, match=f"the prompts of {name} have the digest"):
        planned(name, corpus)


def test_a_digest_is_of_prompts_order_and_sampling() -> None:
    workload = WORKLOADS["arithmetic"]
    turns = tuple(Turn((Message("user", text),)) for text in ("one", "two"))
    plans = [
        digest(workload, [Session("ada", turns)]),
        digest(workload, [Session("ada", turns[::-1])]),
        digest(workload, [Session("bob", turns)]),
        digest(WORKLOADS["resume_screening"], [Session("ada", turns)]),
    ]
    assert len(set(plans)) == 4
    assert plans[0] == digest(workload, [Session("ada", turns)])
    assert read_json(DIGESTS).keys() == WORKLOADS.keys()
