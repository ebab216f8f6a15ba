"""The plan of a capture: pieces that depend only on the recipe.

A piece is a set of rows that are sent to the engine together (`capture.batch_tokens`). bf16
results depend on the batch in which a token is computed, so a piece is always captured as a whole,
by one engine. The feature store is then byte-identical whether one process or any number of
replicas captured it, and whether or not the capture was interrupted.

    plan = list(pieces(rows, CaptureConfig().batch_tokens))
    for piece in unfinished(plan, writer.done):
        ...

After an interruption, pieces that are partly in the store are captured again as a whole, but rows
that are already stored are not written again.

Sequences that are too long for the engine are truncated (`fit`): the prompt and the first tokens of
the completion remain, and their states do not depend on later tokens. If the prompt alone reaches
the limit, nothing is left to train on and the sequence is dropped.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.lost_ends import LostEnds, lost_ends
from outrider.data.config import bytes_per_token
from outrider.data.features.engine_checks import Row
from outrider.serving.engine import LoggedRow, batches
from outrider.speculators.features import FeatureSpec


@dataclass(frozen=True)
class Piece:
    """Rows that are captured together."""

    index: int
    """Position in the plan."""
    rows: tuple[LoggedRow, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens in all rows."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def row_ids(self) -> list[str]:
        """Sequence ids, in order."""
        return [row.row_id for row in self.rows]


def pieces(rows: Iterable[LoggedRow], batch_tokens: int) -> Iterator[Piece]:
    """Yields pieces: consecutive rows totaling at most `batch_tokens`, or one longer row."""
    for index, batch in enumerate(batches(rows, batch_tokens)):
        yield Piece(index, tuple(batch))


def unfinished(plan: Iterable[Piece], done: frozenset[str]) -> Iterator[Piece]:
    """Yields the pieces with a row that is not in `done`."""
    return (piece for piece in plan if not done.issuperset(piece.row_ids))


def state_bytes(spec: FeatureSpec) -> int:
    """Returns the size of one token's id and bfloat16 states, in bytes."""
    return bytes_per_token(spec.width, "bf16", len(spec.streams))


def rows_of(
    table: Dataset, limit: int, answers: Mapping[str, np.ndarray] | None = None
) -> Iterator[LoggedRow]:
    """Yields the rows cut to `limit` tokens, with responses replaced by `answers`."""
    names = ["sequence_id", "token_ids", "completion_start", "temperature", "top_p", "top_k"]
    for row in table.select_columns(names):
        logged = LoggedRow(*(row[name] for name in names))
        if answers and (answer := answers.get(logged.row_id)) is not None:
            logged = logged._replace(
                token_ids=[*logged.token_ids[: logged.completion_start], *answer.tolist()]
            )
        yield logged._replace(token_ids=logged.token_ids[:limit])


def sample_of(table: Dataset, limit: int, count: int) -> list[Row]:
    """Selects at most `count` rows for engine checks, spread over the table."""
    places = np.linspace(0, len(table) - 1, min(count, len(table)), dtype=int)
    return [row[:3] for row in rows_of(table.select(places), limit)]


def fit(table: Dataset, max_model_len: int) -> tuple[Dataset, LostEnds]:
    """Drops rows that cannot be truncated to fit; also returns the counts.

    Other long rows stay whole in the table: capture reads their first `LostEnds.limit` tokens.

    Raises:
        OutriderError: If no row is left.
    """
    lengths = [len(token_ids) for token_ids in table["token_ids"]]
    key = f"serving.engine.max_model_len = {max_model_len:,}"
    # Minus 1, because the engine also samples one token.
    found, kept = lost_ends(lengths, table["completion_start"][:], max_model_len - 1, key)
    if not kept:
        raise OutriderError(
            f"serving.engine.max_model_len = {max_model_len}: none of {len(lengths)} sequences is"
            f" left; raise it, up to {max(lengths) + 1}"
        )
    return (table.select(kept) if found.dropped else table), found
