"""The capture plan of a run by sequence, without reading token ids until a piece is captured.

    plan = PiecePlan(table, limit, batch_tokens)
    plan.piece_of["0-17"]      # 3
    plan.piece(3)              # its rows, for capture replicas

The pieces are those of a stored capture of the same recipe (features/capture_plan.py): they cover
all parts, in the order of the table.
"""

from datasets import Dataset

from outrider.data.features.capture import _rows
from outrider.data.features.capture_plan import Piece
from outrider.serving.engine import batches


class PiecePlan:
    """Pieces of consecutive rows of a table."""

    def __init__(self, table: Dataset, limit: int, batch_tokens: int):
        """`limit`: tokens of a sequence that are captured."""
        self.table, self.limit = table, limit
        self.ids: list[str] = table["sequence_id"][:]
        self.starts: list[int] = table["completion_start"][:]
        self.lengths = [min(len(token_ids), limit) for token_ids in table["token_ids"]]
        self.piece_of: dict[str, int] = {}
        self.tokens: list[int] = []
        """Of each piece."""
        self._first: list[int] = []
        rows = ((row, range(length)) for row, length in enumerate(self.lengths))
        for number, batch in enumerate(batches(rows, batch_tokens)):
            self._first.append(batch[0][0])
            self.tokens.append(sum(len(span) for _, span in batch))
            self.piece_of |= {self.ids[row]: number for row, _ in batch}

    def piece(self, number: int) -> Piece:
        """A piece with its token ids."""
        ends = [*self._first[1:], len(self.ids)]
        rows = self.table.select(range(self._first[number], ends[number]))
        return Piece(number, tuple(_rows(rows, self.limit)))
