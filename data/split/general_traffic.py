"""General traffic: mixed into training, and held out to measure forgetting.

add_general(parts, summary, customers, general, SplitConfig(general_share=0.1))
parts["train"], parts["general"]
"""

import random
from typing import Any

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig
from outrider.data.sequences import log_order, session_names
from outrider.data.split.near_duplicates import SimilarPrompts

GENERAL = "general"
PREFIX = "g"
"""Prefix of general sequence ids; the customer's begin with a digit."""

HELDOUT_SHARE = 0.2
"""Maximum share of the general traffic that is held out."""


def add_general(
    parts: dict[str, Any],
    summary: dict[str, Any],
    customers: Dataset,
    general: Dataset,
    split: SplitConfig,
) -> None:
    """Adds general sequences to the training part and to a separate part.

    They become `split.general_share` of the training part. The latest are held out as `general`;
    their sessions and near-identical prompts are not trained on. Counts are added to the summary.
    """
    ids, prompts = general["sequence_id"][:], general["prompt_text"][:]
    times = log_order(general["time"])
    sessions = session_names(general, times, split.session_gap_minutes)
    first_times: dict[str, tuple[float, int]] = {}
    for row in sorted(range(len(ids)), key=times.__getitem__):
        first_times.setdefault(sessions[row], times[row])
    order = sorted(
        range(len(ids)), key=lambda row: (first_times[sessions[row]], sessions[row], times[row])
    )
    kept = max(1, min(split.max_general_sequences, int(HELDOUT_SHARE * len(order))))
    heldout, rest = order[-kept:], order[:-kept]
    straddling = {sessions[row] for row in heldout}
    rest = [row for row in rest if sessions[row] not in straddling]
    share = split.general_share
    wanted = round(share / (1 - share) * len(parts["train"]))
    chosen = random.Random(f"{split.seed} general").sample(rest, min(wanted, len(rest)))
    place = {sequence_id: row for row, sequence_id in enumerate(customers["sequence_id"])}
    customers_prompts = customers["prompt_text"]
    trained = [customers_prompts[place[sequence_id]] for sequence_id in parts["train"]]
    trained += [prompts[row] for row in chosen]
    seen = SimilarPrompts(
        trained, split.near_duplicate_similarity, [*trained, *(prompts[row] for row in heldout)]
    )
    measured = [row for row in heldout if not seen.holds(prompts[row])]
    if not measured:
        raise OutriderError(
            f"traffic.general: of its {len(ids)} sequences none is left to measure on: all of the "
            "latest are near-identical to training prompts; give more or other general traffic, or "
            "leave traffic.general out"
        )
    parts["train"] = [*parts["train"], *(ids[row] for row in sorted(chosen))]
    parts[GENERAL] = [ids[row] for row in measured]
    logged = general["session"][:]
    parts.setdefault("sessions", {}).update(
        (ids[row], sessions[row]) for row in measured if sessions[row] != logged[row]
    )
    summary[GENERAL] = {
        "sequences": len(ids),
        "trained_on": len(chosen),
        "wanted": wanted,
        "measured_on": len(measured),
    }
