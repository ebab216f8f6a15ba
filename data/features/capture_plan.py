"""The plan of a capture: pieces of the table in its order, which depend on the recipe only.

A piece is what the engine prefills at a time (`capture.batch_tokens`). bf16 results depend on the
batch that a token was computed in, so a piece is always captured as a whole, by one engine: the
feature store then has the same bytes from one process, from any number of replicas, and after an
interruption.

    plan = list(pieces(rows, CaptureConfig().batch_tokens))
    for piece in unfinished(plan, writer.done):
        ...

Pieces of an interrupted capture that are partly in the store are captured again, and their first
rows are skipped.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from outrider.data.config import StateDtype, bytes_per_token
from outrider.serving.engine import LoggedRow, batches
from outrider.speculators.features import FeatureSpec


@dataclass(frozen=True)
class Piece:
    """Rows that are captured together."""

    index: int
    """Place in the plan."""
    rows: tuple[LoggedRow, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def row_ids(self) -> list[str]:
        """Sequence ids, in order."""
        return [row.row_id for row in self.rows]

    def nbytes(self, spec: FeatureSpec) -> int:
        """Bytes of the states of all streams in memory, in bfloat16."""
        return self.tokens * state_bytes(spec)


def pieces(rows: Iterable[LoggedRow], batch_tokens: int) -> Iterator[Piece]:
    """The plan: consecutive rows of at most `batch_tokens` tokens, or one longer row."""
    for index, batch in enumerate(batches(rows, batch_tokens)):
        yield Piece(index, tuple(LoggedRow(*row) for row in batch))


def unfinished(
    plan: Iterable[Piece], done: Collection[str], only: Collection[str] | None = None
) -> Iterator[Piece]:
    """Pieces with a row that is not in `done`; `only`: of those that count."""

    def missing(row_id: str) -> bool:
        return row_id not in done and (only is None or row_id in only)

    return (piece for piece in plan if any(missing(row_id) for row_id in piece.row_ids))


def state_bytes(spec: FeatureSpec, dtype: StateDtype = "bf16") -> int:
    """Bytes of one token's states."""
    return bytes_per_token(spec.width, dtype, len(spec.streams))
