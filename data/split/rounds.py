"""Chooses the sequences for a training round and its gate.

    chosen = choose_sequences(newer, older, most=2000, older_share=0.3, seed=4, owners=owners)
    parts = training_parts(table, validation_fraction=0.1, gap_minutes=30)
    gate = select_unseen(trained, newest, gap_minutes=30, similarity=0.9)

A round trains on the newest traffic, mixed with a sample of older traffic to prevent forgetting. No
round trains on the held-back sessions: they are used to choose the checkpoint, and those from older
traffic to measure forgetting. The gate uses even later traffic, excluding sessions that were
trained on and prompts that are near-identical to training prompts.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datasets import Dataset, concatenate_datasets

from outrider.data.sequences import log_order, session_names
from outrider.data.split.near_duplicates import SimilarPrompts
from outrider.data.split.split import BEGAN_EARLIER, SEEN


def choose_sequences(
    newer: Sequence[str],
    older: Sequence[str],
    *,
    most: int,
    older_share: float,
    seed: int,
    owners: Mapping[str, str],
) -> list[str]:
    """Chooses up to `most` ids: sampled `older` ones, then the latest `newer`.

    Both lists are in chronological order. At most `older_share` of the result is older; newer ids
    fill the rest. `owners` maps each id to its tenant or user, empty if none was logged. One owner
    exceeds half of the result only if the others have too few ids.
    """
    count = min(most, round(len(newer) / (1 - older_share)))
    sample = min(round(older_share * count), len(older))
    drawn = _shared_out(random.Random(seed).sample(older, len(older)), sample, owners)
    newest = _shared_out(newer[::-1], most - sample, owners)
    return [*(name for name in older if name in drawn), *(name for name in newer if name in newest)]


def _shared_out(names: Sequence[str], count: int, owners: Mapping[str, str]) -> set[str]:
    """Chooses `count` ids; an owner's ids beyond half are chosen last."""
    limit = math.ceil(min(count, len(names)) / 2)
    taken: Counter[str] = Counter()
    first: list[str] = []
    rest: list[str] = []
    for name in names:
        owner = owners[name]
        taken[owner] += 1
        (rest if owner and taken[owner] > limit else first).append(name)
    return set((first + rest)[:count])


def held_back_ids(table: Dataset, share: float) -> list[str]:
    """Returns the ids of sequences whose sessions no round trains on.

    A hash of the logged session name decides, so the choice is the same in every call and window.
    """
    return [
        name
        for name, session in zip(table["sequence_id"], table["session"], strict=True)
        if int(hashlib.sha256(session.encode()).hexdigest()[:8], 16) < share * 16**8
    ]


def training_parts(
    table: Dataset, validation_fraction: float, gap_minutes: float
) -> dict[str, list[str]]:
    """Returns `train` and `validation` ids; the held-back sessions are the validation part.

    If all sessions or none are held back, the validation part consists of the latest sessions, at
    least one. A table of a single session is cut by time.
    """
    ids = table["sequence_id"][:]
    times = log_order(table["time"])
    held = set(held_back_ids(table, validation_fraction))
    sessions = session_names(table, times, gap_minutes)
    order = sorted(range(len(ids)), key=times.__getitem__)
    begun = list(dict.fromkeys(sessions[row] for row in order))
    last = max(round(len(begun) * validation_fraction), 1)
    if 0 < len(held) < len(ids):
        validation = [row for row in order if ids[row] in held]
    elif len(begun) > 1:
        later = set(begun[-last:])
        validation = [row for row in order if sessions[row] in later]
    else:
        validation = order[-max(round(len(order) * validation_fraction), 1) :]
    training_rows = set(order) - set(validation)
    return {
        "train": [ids[row] for row in order if row in training_rows],
        "validation": [ids[row] for row in validation],
    }


@dataclass(frozen=True)
class UnseenSequences:
    """Sequences that a round's gate may use."""

    sessions: dict[str, str]
    """The session of each sequence, in log order."""
    left_out: dict[str, int]
    """Number of left-out sequences, by reason."""


def select_unseen(
    trained: Dataset, newest: Dataset, gap_minutes: float, similarity: float
) -> UnseenSequences:
    """Selects sequences of `newest` that share no session or prompt with `trained`."""
    table = concatenate_datasets([trained, newest])
    sessions = session_names(table, log_order(table["time"]), gap_minutes)
    begun = set(sessions[: len(trained)])
    # Boilerplate is determined on the newest traffic only. After a shift, few training prompts have
    # the new template, so it would not count if both were used, and new prompts would look alike.
    similar = SimilarPrompts(trained["prompt_text"], similarity, newest["prompt_text"])
    unseen_sessions: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    for name, session, prompt in zip(
        newest["sequence_id"], sessions[len(trained) :], newest["prompt_text"], strict=True
    ):
        if session in begun:
            left_out[BEGAN_EARLIER] += 1
        elif similar.holds(prompt):
            left_out[SEEN["train"]] += 1
        else:
            unseen_sessions[name] = session
    return UnseenSequences(unseen_sessions, dict(left_out))
