"""Tables of token sequences: the customer's traffic and general traffic.

rows = load_sequences("runs/resume_screening/traffic/sequences", parts["heldout"])
rows = load_sequences([customers, general], parts["train"])
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset, concatenate_datasets, load_from_disk

from outrider.common.errors import OutriderError
from outrider.data.exchange import CONVERSATION

Tables = Path | str | Sequence[Path]
"""Directory of one table, or directories of several tables with disjoint ids."""


def load_sequences(
    sequences_dir: Tables, ids: list[str] | None = None, sessions: Mapping[str, str] | None = None
) -> Dataset:
    """Returns the rows of `ids` in that order, or all in log order; memory-mapped.

    `sessions` maps sequence ids to session names that replace the logged ones (`session_names`).
    """
    directories = [sequences_dir] if isinstance(sequences_dir, (str, Path)) else sequences_dir
    loaded = []
    for directory in directories:
        try:
            loaded.append(load_from_disk(str(directory)))
        except FileNotFoundError:
            raise OutriderError(
                f"{directory}: no table of sequences; run the ingest stage first"
            ) from None
        if "grammar" not in loaded[-1].column_names:
            raise OutriderError(
                f"{directory}: a table of sequences from an earlier version of Outrider, without"
                " the column `grammar`; rerun `outrider train`, which ingests the log again"
            )
    table = concatenate_datasets(loaded)
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
            f"(first {unknown[0]}); the table has changed, rerun the split stage"
        )
    return table.select([index[sequence_id] for sequence_id in ids])


def log_order(times: Iterable[float | None]) -> list[tuple[float, int]]:
    """Returns the sort keys; a row without a time follows its predecessor."""
    keys = []
    latest = -math.inf
    without = 0
    for time in times:
        latest, without = (latest, without + 1) if time is None else (time, 0)
        keys.append((latest, without))
    return keys


def session_names(
    table: Dataset, times: Sequence[tuple[float, int]], gap_minutes: float
) -> list[str]:
    """Returns every row's session name; `times` are the keys from `log_order`.

    A conversation id is one session, however long it lasts. A user id lasts for weeks; as a single
    session, its exchanges would be kept in one part only. Templates and load tests repeat the same
    first question. So sessions named after a user id or a first question end after a pause of
    `gap_minutes`; the next session is named after its first sequence, such as `session 0-17`. A
    name that is a conversation id in any row counts as one in all rows.

    A row without a time takes the time of the row before it in the log. Without any times there are
    no pauses, so the split leaves out too much rather than too little (`outrider inspect` warns).
    """
    logged = table["session"][:]
    ids = table["sequence_id"][:]
    # Tables without this column have only conversations.
    has_kinds = "session_kind" in table.column_names
    kinds = table["session_kind"] if has_kinds else [CONVERSATION] * len(ids)
    lasting = set(logged) - {
        name for name, kind in zip(logged, kinds, strict=True) if kind in (CONVERSATION, "")
    }
    names = list(logged)
    latest = dict[str, tuple[str, float]]()
    for row in sorted(range(len(names)), key=times.__getitem__):
        name = logged[row]
        time = times[row][0]
        if name not in lasting:
            continue
        session, before = latest.get(name, (name, time))
        if math.isfinite(before) and time - before > 60 * gap_minutes:
            session = f"session {ids[row]}"
        latest[name] = (session, time)
        names[row] = session
    return names
