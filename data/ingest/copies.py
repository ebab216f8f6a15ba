"""Finds rows that are copies of one logged response, in the whole log.

A response is logged twice by at-least-once shipping, overlapping exports, two export sources
(Langfuse's observations/ and observations_v2/), or a link to a file next to it. Copies would be
trained on and measured several times, perhaps in other sessions. One row of them is kept.

    keys = copy_keys(exchange, sequence)        # in the workers
    copies = copies_in(parts)       # {part: {row: (file, line) of the row that is kept}}

Two rows are copies if their tokens are equal, and the engine's response id, the log's row id, or
the time. Different response ids are different responses, whatever their text and time are. Equal
text without ids or times is kept, since prompts repeat in traffic. Under one response id, the same
prompt with a retokenized completion is a copy of the one with the engine's ids. An id that the log
has with different prompts identifies nothing, such as a constant that a client sends.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from outrider.data.exchange import SESSION_KINDS, Exchange
from outrider.data.tokenize.tokens import TokenSequence

MATCHING = ("response_key", "row_key", "time_key")
"""Columns of digests of an id with the prompt, or of the time with all tokens. Rows with an equal
digest may be copies; 0 is for values that were not logged."""

ID_OF = {"response_key": "response_id", "row_key": "row_id"}
"""Columns of digests of the ids alone."""

COPY_KEYS = ("tokens_key", *ID_OF.values(), *MATCHING)

NOTHING = np.empty(0, np.uint64)

FIDELITIES = ("exact", "retokenized", "regenerate")
"""Fidelities of a sequence, most useful first."""

Copies = Mapping[Path, Mapping[int, tuple[str, int]]]
"""Rows to set aside of each part, with the file and line of the row that is kept."""


def copy_keys(exchange: Exchange, sequence: TokenSequence) -> dict[str, int]:
    """Returns the digests of a row's ids, time and tokens."""
    ids = np.asarray(sequence.token_ids, np.int32)
    prompt = ids[: sequence.completion_start].tobytes()
    tokens = ids.tobytes() + str(sequence.completion_start).encode()
    choice = str(exchange.choice)
    keys = dict.fromkeys(COPY_KEYS, 0) | {"tokens_key": _digest(tokens)}
    for (key, id_column), logged_id in zip(
        ID_OF.items(), (exchange.response_id, exchange.log_id), strict=True
    ):
        if logged_id:
            keys[id_column] = _digest(logged_id, choice)
            keys[key] = _digest(logged_id, choice, prompt)
    if exchange.time is not None:
        keys["time_key"] = _digest(repr(exchange.time), choice, tokens)
    return keys


def _digest(*values: str | bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        digest.update(value if isinstance(value, bytes) else value.encode())
        digest.update(b"\0")
    return int.from_bytes(digest.digest(), "little")


def copies_in(parts: Sequence[Path]) -> Copies:
    """Returns the rows to set aside of each part, with the place of the row that is kept.

    Only rows whose digest occurs more than once are compared. Of copies, the one with the engine's
    token ids is kept, then the one with the most precise session, then the first in the log.
    """
    vague = {name: _vague_ids(parts, name) for name in ID_OF}
    repeated = {name: _repeated(parts, name) for name in MATCHING}
    candidates: list[dict[str, Any]] = []
    for part in parts:
        candidates += _candidates(part, repeated)
    for row in candidates:
        for name, id_column in ID_OF.items():
            if row[id_column] in vague[name]:
                row[id_column] = row[name] = 0
    candidates.sort(key=_preference)
    copies: dict[Path, dict[int, tuple[str, int]]] = defaultdict(dict)
    kept_under: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in candidates:
        keys = [(name, row[name]) for name in MATCHING if row[name]]
        original = next((first for key in keys for first in _originals(row, key, kept_under)), None)
        if original is not None:
            copies[row["part"]][row["at"]] = (original["file"], original["line"])
            continue
        for key in keys:
            kept_under[key].append(row)
    return copies


def _originals(
    row: dict[str, Any],
    key: tuple[str, int],
    kept_under: Mapping[tuple[str, int], list[dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Yields the rows with a row's digest that it is a copy of."""
    for original in kept_under.get(key, ()):
        if _is_copy(row, original, key[0]):
            yield original


def _columns(part: Path, names: Sequence[str]) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(part))).read_all().select(names)


def _column(parts: Sequence[Path], name: str) -> np.ndarray:
    digests = [_columns(part, [name])[name].to_numpy() for part in parts]
    return np.concatenate([*digests, NOTHING])


def _repeated(parts: Sequence[Path], name: str) -> np.ndarray:
    """Returns the digests that occur more than once; 8 bytes a row stay in memory."""
    values, counts = np.unique(_column(parts, name), return_counts=True)
    return values[(counts > 1) & (values != 0)]


def _vague_ids(parts: Sequence[Path], name: str) -> set[int]:
    """Returns the digests of ids that occur with different prompts."""
    columns = (_column(parts, ID_OF[name]), _column(parts, name))
    pairs = np.unique(np.stack(columns), axis=1)
    values, counts = np.unique(pairs[0], return_counts=True)
    return set(values[counts > 1].tolist())


def _candidates(part: Path, repeated: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    table = _columns(part, [*COPY_KEYS, "file", "line", "session_kind", "fidelity"])
    is_repeated = np.zeros(len(table), bool)
    for name, digests in repeated.items():
        is_repeated |= np.isin(table[name].to_numpy(), digests)
    rows = np.flatnonzero(is_repeated)
    places = [{"part": part, "at": int(at)} for at in rows]
    columns = table.take(rows).to_pylist()
    return [place | row for place, row in zip(places, columns, strict=True)]


def _preference(row: dict[str, Any]) -> tuple[int, int]:
    """Sorts rows, which are in log order, by how much of the exchange they hold."""
    return FIDELITIES.index(row["fidelity"]), SESSION_KINDS.index(row["session_kind"])


def _is_copy(row: dict[str, Any], original: dict[str, Any], name: str) -> bool:
    """Whether two rows with an equal digest in column `name` are one response."""
    response_ids = {row["response_id"], original["response_id"]} - {0}
    if len(response_ids) > 1:
        return False
    is_better_known = name == "response_key" and row["fidelity"] != original["fidelity"]
    return row["tokens_key"] == original["tokens_key"] or is_better_known
