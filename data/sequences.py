"""Tables of token sequences: the customer's traffic and general traffic.

rows = load_sequences("runs/resume_screening/traffic/sequences", parts["heldout"])
rows = load_sequences([customers, general], parts["train"])
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset, concatenate_datasets, load_from_disk

from outrider.common.errors import OutriderError

Tables = Path | str | Sequence[Path]
"""Directory of one table, or of several with disjoint ids."""


def load_sequences(
    sequences_dir: Tables,
    ids: list[str] | None = None,
    sessions: Mapping[str, str] | None = None,
) -> Dataset:
    """Returns the rows of `ids` in that order, or all in log order; memory-mapped.

    `sessions` names the sessions of some rows by id, instead of the logged names
    (split/sessions.py).
    """
    directories = [sequences_dir] if isinstance(sequences_dir, (str, Path)) else sequences_dir
    table = concatenate_datasets([_load(directory) for directory in directories])
    if sessions:
        pairs = zip(table["sequence_id"], table["session"], strict=True)
        names = [sessions.get(sequence_id, logged) for sequence_id, logged in pairs]
        table = table.remove_columns("session").add_column("session", names)
    if ids is None:
        return table
    index = {sequence_id: position for position, sequence_id in enumerate(table["sequence_id"])}
    unknown = [sequence_id for sequence_id in ids if sequence_id not in index]
    if unknown:
        raise OutriderError(
            f"{directories[0]}: {len(unknown)} of {len(ids)} sequences are not in the table "
            f"(first {unknown[0]}); the table has changed, run the split stage again"
        )
    return table.select([index[sequence_id] for sequence_id in ids])


def log_order(times: Iterable[float | None]) -> list[tuple[float, int]]:
    """Sort keys of rows in log order: a row without a time follows the row before it."""
    keys = []
    latest, without = -math.inf, 0
    for time in times:
        latest, without = (latest, without + 1) if time is None else (time, 0)
        keys.append((latest, without))
    return keys


def _load(directory: Path | str) -> Dataset:
    try:
        return load_from_disk(str(directory))
    except FileNotFoundError:
        raise OutriderError(
            f"{directory}: no table of sequences; run the ingest stage first"
        ) from None
