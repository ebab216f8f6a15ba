"""Arithmetic reasoning: GSM8K's questions, without an instruction.

    sessions(Path("corpus"))[0].turns

It is the templated workload of the four: all prompts have the same layout. A session is three
unrelated questions of one pupil.
"""

import random
from pathlib import Path

from tools.nano_r1.conversations import corpus_rows
from tools.workloads.sessions import Message, Session, Turn

QUESTIONS = 3


def sessions(corpus: Path, responses: int = 1290) -> list[Session]:
    """Questions in random order, in sessions of three."""
    rows = corpus_rows(corpus, "gsm8k_train.jsonl.gz")
    questions = list(dict.fromkeys(" ".join(row["question"].split()) for row in rows))
    rng = random.Random("arithmetic")
    sampled = rng.sample(questions, min(responses, len(questions)))
    turns = [Turn((Message("user", question),)) for question in sampled]
    return [
        Session(f"pupil-{start // QUESTIONS:04d}", tuple(turns[start : start + QUESTIONS]))
        for start in range(0, len(turns), QUESTIONS)
    ]
