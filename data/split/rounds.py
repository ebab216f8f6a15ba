"""Which sequences a training round uses, and which ones its gate may.

    chosen = choose_sequences(newer, older, most=2000, older_share=0.3, seed=4)
    parts = training_parts(table, validation_fraction=0.1, gap_minutes=30)
    gate = unseen(trained, newest, gap_minutes=30, similarity=0.9)

A round trains on the newest traffic, mixed with a sample of older traffic against forgetting. The
latest sessions choose the checkpoint. The gate measures on traffic that arrived later still,
without sessions that were trained on and without prompts nearly identical to trained ones.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from datasets import Dataset, concatenate_datasets

from outrider.data.sequences import log_order, session_names
from outrider.data.split.near_duplicates import SimilarPrompts
from outrider.data.split.split import BEGAN_EARLIER, SEEN


def choose_sequences(
    newer: Sequence[str], older: Sequence[str], most: int, older_share: float, seed: int
) -> list[str]:
    """At most `most` ids: the latest of `newer`, and a seeded sample of `older` before them.

    Both are in order of time. `older_share` of the result is older, as far as there is any. If
    there are too few older ones, newer ones fill the rest.
    """
    count = min(most, round(len(newer) / (1 - older_share)))
    sample = min(round(older_share * count), len(older))
    drawn = set(random.Random(seed).sample(range(len(older)), sample))
    kept = newer[-(most - sample) :] if most > sample else []
    return [*(name for index, name in enumerate(older) if index in drawn), *kept]


def training_parts(
    table: Dataset, validation_fraction: float, gap_minutes: float
) -> dict[str, list[str]]:
    """`train` and `validation` ids; the latest sessions are the validation part, at least one.

    A table of a single session has both parts from it, cut by time.
    """
    ids, times = table["sequence_id"][:], log_order(table["time"])
    sessions = session_names(table, times, gap_minutes)
    order = sorted(range(len(ids)), key=times.__getitem__)
    begun = list(dict.fromkeys(sessions[row] for row in order))
    last = max(round(len(begun) * validation_fraction), 1)
    if len(begun) > 1:
        later = set(begun[-last:])
        validation = [row for row in order if sessions[row] in later]
    else:
        validation = order[-max(round(len(order) * validation_fraction), 1) :]
    held = set(validation)
    return {
        "train": [ids[row] for row in order if row not in held],
        "validation": [ids[row] for row in validation],
    }


@dataclass(frozen=True)
class Unseen:
    """Sequences that a round may be judged on."""

    ids: list[str]
    """In log order."""
    sessions: dict[str, str]
    """The session of each."""
    left_out: dict[str, int]
    """Reason -> number of sequences."""


def unseen(trained: Dataset, newest: Dataset, gap_minutes: float, similarity: float) -> Unseen:
    """The sequences of `newest` that share no session and no prompt with `trained` ones."""
    table = concatenate_datasets([trained, newest])
    sessions = session_names(table, log_order(table["time"]), gap_minutes)
    begun = set(sessions[: len(trained)])
    # Boilerplate is that of the traffic to be judged: after a shift its template is in a minority
    # of the trained prompts, and would make all of its prompts look alike.
    similar = SimilarPrompts(trained["prompt_text"], similarity, newest["prompt_text"])
    kept: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for name, session, prompt in zip(
        newest["sequence_id"], sessions[len(trained) :], newest["prompt_text"], strict=True
    ):
        reason = BEGAN_EARLIER if session in begun else None
        if reason is None and similar.holds(prompt):
            reason = SEEN["train"]
        if reason is None:
            kept[name] = session
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Unseen([*kept], kept, left_out)
