"""Finds rows that are copies of one logged response, in the whole log.

A response is logged twice by at-least-once shipping, overlapping exports, two export sources
(Langfuse's observations/ and observations_v2/), or a link to a file next to it. Copies would be
trained on and measured several times, perhaps in other sessions. One row of them is kept.

    keys = copy_keys(exchange, sequence)        # in the workers
    copies = copies_in(parts)       # {part: {row: ("duplicate", "the same response as ...")}}

Two rows are copies if their tokens are equal, and the engine's response id, the log's row id, or
the time. Different response ids are different responses, whatever their text and time are. Equal
text without ids or times is kept, since prompts repeat in traffic. Under one response id, a
retokenized completion is a copy of the one with the engine's ids. An id that the log has with
different prompts identifies nothing, such as a constant that a client sends.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from outrider.data.exchange import DUPLICATE, SESSION_KINDS, Exchange
from outrider.data.ingest.arrow_files import columns_of
from outrider.data.tokenize.tokens import TokenSequence

IDS = ("response_id", "row_id")
MATCHING = (*IDS, "time_key")
COPY_KEYS = (*MATCHING, "prompt_key", "completion_key")
"""Columns of digests. Rows with an equal digest in a column of `MATCHING` may be copies; 0 is for
values that were not logged."""

FIDELITIES = ("exact", "retokenized", "regenerate")
"""Fidelities of a sequence, most useful first."""

RANKED = (("session_kind", SESSION_KINDS), ("fidelity", FIDELITIES))
"""Columns that decide which of the copies is kept, the most important last, as `lexsort` takes
them, with their values, most useful first."""

NO_ID = 0
ANY_ID = -1

Columns = dict[str, np.ndarray]

SetAside = Mapping[Path, Mapping[int, tuple[str, str]]]
"""Rows to set aside of each part, with reason and detail."""


def copy_keys(exchange: Exchange, sequence: TokenSequence) -> dict[str, int]:
    """Returns the digests of a row's ids, time and tokens."""
    ids = np.asarray(sequence.token_ids, np.int32)
    prompt = ids[: sequence.completion_start].tobytes()
    completion = ids[sequence.completion_start :].tobytes()
    choice = str(exchange.choice)
    keys = dict.fromkeys(COPY_KEYS, 0)
    keys["prompt_key"] = _digest(prompt)
    keys["completion_key"] = _digest(completion)
    if exchange.response_id:
        keys["response_id"] = _digest(exchange.response_id, choice)
    if exchange.log_id:
        keys["row_id"] = _digest(exchange.log_id, choice)
    if exchange.time is not None:
        keys["time_key"] = _digest(repr(exchange.time), choice, prompt, completion)
    return keys


def _digest(*values: str | bytes) -> int:
    # With 64 bits, two of 100 million values are equal by chance with a probability of 0.0003.
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        content = value if isinstance(value, bytes) else value.encode()
        # The length separates the values: ("a", "bc") and ("ab", "c") differ.
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return int.from_bytes(digest.digest(), "little")


def copies_in(parts: Sequence[Path]) -> SetAside:
    """Returns the rows to set aside of each part, with the place of the row that is kept.

    Of copies, the one with the engine's token ids is kept, then the one with the most precise
    session, then the first in the log. About 50 bytes a row are in memory, and more only for rows
    whose digest occurs more than once.
    """
    if not parts:
        return {}
    tables = [columns_of(part, [*COPY_KEYS, "fidelity", "session_kind"]) for part in parts]
    columns = {name: _joined(tables, name) for name in COPY_KEYS}
    for name in IDS:
        columns[name][_is_vague(columns, name)] = 0
    is_repeated = np.logical_or.reduce([_is_repeated(columns[name]) for name in MATCHING])
    rows = np.flatnonzero(is_repeated)
    ranks = [_ranks(tables, *ranked)[rows] for ranked in RANKED]
    originals = _originals(columns, _ranks(tables, *RANKED[0]), rows[np.lexsort(ranks)])
    return _by_part(parts, [len(table) for table in tables], originals)


def _joined(tables: Sequence[pa.Table], name: str) -> np.ndarray:
    return np.concatenate([table[name].to_numpy() for table in tables])


def _ranks(tables: Sequence[pa.Table], name: str, values: Sequence[str]) -> np.ndarray:
    """Returns the position of each row's value among `values`."""
    order = pa.array(values)
    return np.concatenate([pc.index_in(table[name], order).to_numpy() for table in tables])


def _is_repeated(digests: np.ndarray) -> np.ndarray:
    _, positions, counts = np.unique(digests, return_inverse=True, return_counts=True)
    return (counts[positions] > 1) & (digests != 0)


def _is_vague(columns: Columns, name: str) -> np.ndarray:
    """Whether each row's id occurs with different prompts."""
    pairs = np.unique(np.stack([columns[name], columns["prompt_key"]]), axis=1)
    values, counts = np.unique(pairs[0], return_counts=True)
    return np.isin(columns[name], values[counts > 1])


def _originals(columns: Columns, fidelities: np.ndarray, rows: np.ndarray) -> dict[int, int]:
    """Returns each copy's original among `rows`, which are sorted by preference."""
    originals: dict[int, int] = {}
    first: dict[tuple[Any, ...], int] = {}
    for row in rows.tolist():
        response_id = int(columns["response_id"][row])
        marks = _marks(columns, row)
        # The engine's ids under a response id stand for a retokenized completion under it.
        exact = ("exact", response_id) if response_id else ()
        is_exact = fidelities[row] == 0
        sought = marks if is_exact or not exact else [*marks, exact]
        # Different response ids are different responses, whatever else is equal.
        owners = (response_id, NO_ID) if response_id else (ANY_ID,)
        matches = (first.get((*mark, owner)) for mark in sought for owner in owners)
        original = next((match for match in matches if match is not None), None)
        if original is not None:
            originals[row] = original
            continue
        for mark in [*marks, exact] if is_exact and exact else marks:
            first.setdefault((*mark, response_id), row)
            first.setdefault((*mark, ANY_ID), row)
    return originals


def _marks(columns: Columns, row: int) -> list[tuple[Any, ...]]:
    """Returns what a row has in common with its copies."""
    response_id, row_id, time_key, completion = (
        int(columns[name][row]) for name in (*MATCHING, "completion_key")
    )
    marks: list[tuple[Any, ...]] = []
    if response_id:
        marks.append(("response_id", response_id, completion))
    if row_id:
        marks.append(("row_id", row_id, completion))
    if time_key:
        marks.append(("time_key", time_key))
    return marks


def _by_part(parts: Sequence[Path], lengths: list[int], originals: Mapping[int, int]) -> SetAside:
    """Returns copies by part and row, with the place of their originals."""
    begins = np.cumsum([0, *lengths])
    details: dict[int, str] = {}
    for number, rows in _grouped(begins, set(originals.values())).items():
        table = columns_of(parts[number], ["file", "line"])
        positions = [row - int(begins[number]) for row in rows]
        for row, columns in zip(rows, table.take(positions).to_pylist(), strict=True):
            details[row] = f"the same response as {columns['file']}:{columns['line']}"
    return {
        parts[number]: {
            row - int(begins[number]): (DUPLICATE, details[originals[row]]) for row in rows
        }
        for number, rows in _grouped(begins, set(originals)).items()
    }


def _grouped(begins: np.ndarray, rows: set[int]) -> dict[int, list[int]]:
    """Groups rows, in order, by the number of their part."""
    grouped: dict[int, list[int]] = defaultdict(list)
    for row in sorted(rows):
        grouped[int(np.searchsorted(begins, row, side="right")) - 1].append(row)
    return grouped
