"""General traffic for a base head: all corpora, without the later parts of the workloads.

    sessions(Path("corpus"))[0].turns

A fair base knows the kinds of text that the four workloads have, as a public head does, but nothing
on which a custom head is measured: of receipts, those of the first `EARLY` of document extraction;
otherwise questions, messages and résumés that no workload has. Each session is one request.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tools.nano_r1.conversations import corpus_rows
from tools.workloads import arithmetic, customer_chat, document_extraction, resume_screening
from tools.workloads.sessions import Message, Session, Turn

EARLY = 0.6
"""Share of a workload's sessions; validation and held-out parts are the last 0.35 at most."""

RESPONSES = {"mathematics": 1500, "banking": 1500, "orders": 1000, "receipts": 500, "resumes": 600}
"""Requests of each kind; fewer if a corpus has fewer."""

ABOUT_RECEIPTS = [
    "What was bought here, and where?",
    "Describe this purchase.",
    "How much was paid, and for what?",
    "Explain this receipt to someone who was not there.",
    "Is there anything unusual about this receipt?",
    "Which kind of shop is this?",
]

ABOUT_RESUMES = [
    "Summarize this résumé.",
    "Which questions would you ask this candidate in an interview?",
    "Which jobs would suit this candidate?",
    "Write a short letter of application for this candidate.",
    "What are the strengths of this candidate?",
    "How could this résumé be improved?",
]

ASSISTANTS = [
    "You are a helpful assistant.",
    "You work in the support of a bank. Be polite, and explain the next step.",
    "Answer the customer's question in a few sentences.",
]


def sessions(corpus: Path) -> list[Session]:
    """One request each, in random order."""
    rng = random.Random("general traffic")
    kinds = {
        "mathematics": mathematics(corpus),
        "banking": banking(corpus, rng),
        "orders": orders(corpus, rng),
        "receipts": receipts(corpus, rng),
        "resumes": resumes(rng, RESPONSES["resumes"]),
    }
    chosen = []
    for kind, count in RESPONSES.items():
        turns = list(kinds[kind])
        chosen += rng.sample(turns, min(count, len(turns)))
    rng.shuffle(chosen)
    return [Session(f"user-{number:04d}", (turn,)) for number, turn in enumerate(chosen)]


def mathematics(corpus: Path) -> Iterator[Turn]:
    """GSM8K's questions that arithmetic does not have."""
    asked = {
        message.content
        for session in arithmetic.sessions(corpus)
        for turn in session.turns
        for message in turn.messages
    }
    rows = corpus_rows(corpus, "gsm8k_train.jsonl.gz")
    for question in dict.fromkeys(" ".join(row["question"].split()) for row in rows):
        if question not in asked:
            yield Turn((Message("user", question),))


def banking(corpus: Path, rng: random.Random) -> Iterator[Turn]:
    """Banking77's questions, half of them with a system prompt."""
    rows = corpus_rows(corpus, "banking77_train.jsonl.gz")
    for question in dict.fromkeys(" ".join(row["text"].split()) for row in rows):
        yield with_system(rng, rng.choice(ASSISTANTS), question)


def orders(corpus: Path, rng: random.Random) -> Iterator[Turn]:
    """First messages of dialogues that customer chat does not have, at other shops."""
    used = {session.turns[0].messages[-1].content for session in customer_chat.sessions(corpus)}
    for messages in customer_chat.dialogues(corpus):
        if messages[0] not in used:
            yield with_system(rng, customer_chat.system_prompt(rng), messages[0])


def receipts(corpus: Path, rng: random.Random) -> Iterator[Turn]:
    """Two questions about each receipt that only document extraction's first part has, in prose."""
    extraction = document_extraction.sessions(corpus)
    later = [
        message.content
        for session in extraction[int(EARLY * len(extraction)) :]
        for turn in session.turns
        for message in turn.messages
    ]
    rows = corpus_rows(corpus, "sroie_receipts.jsonl.gz")
    for text in dict.fromkeys(row["ocr_text"] for row in rows):
        if any(text in content for content in later):
            continue
        for question in rng.sample(ABOUT_RECEIPTS, 2):
            yield Turn((Message("user", f"{question}\n\n{text}"),))


def resumes(rng: random.Random, count: int) -> Iterator[Turn]:
    """Tasks about résumés of other candidates than those that are screened."""
    for _ in range(count):
        posting = resume_screening.new_posting(rng)
        layout, order = rng.choice(resume_screening.LAYOUTS)
        resume = layout(resume_screening.new_candidate(rng, posting), order)
        yield Turn((Message("user", f"{rng.choice(ABOUT_RESUMES)}\n\n{resume}"),))


def with_system(rng: random.Random, system: str, content: str) -> Turn:
    """A request that has the system prompt in half of all cases."""
    message = Message("user", content)
    return Turn((Message("system", system), message) if rng.random() < 0.5 else (message,))
