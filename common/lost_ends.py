"""Counts truncated responses for the plan, the progress output and the report.

    found, kept = count_lost_ends(lengths, starts, limit=2047, key="serving.engine.max_model_len =
    2,048") print(found.describe())     # ...: of 720 responses 2 are cut off (512 tokens lost) ...

A cut keeps the beginning: the prompt and the first tokens of the response.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LostEnds(NamedTuple):
    """Counts of sequences that a limit cuts or drops."""

    key: str
    """The recipe key that sets the limit, with its value."""
    limit: int
    """Maximum length of a prompt and its response together, in tokens."""
    longest: int
    """Length of the longest sequence, in tokens."""
    sequences: int
    cut: int
    cut_tokens: int
    """Number of tokens cut from the responses."""
    dropped: int
    """Number of sequences that are left out."""

    def describe(self) -> str:
        """Returns one readable line; empty if every sequence fits."""
        if not (self.cut or self.dropped):
            return ""
        cut = f"{self.cut:,} are cut off ({self.cut_tokens:,} tokens lost)" if self.cut else ""
        dropped = f"{self.dropped:,} are left out" if self.dropped else ""
        return (
            f"{self.key}: of {self.sequences:,} responses"
            f" {' and '.join(filter(None, (cut, dropped)))}; raise it by"
            f" {self.longest - self.limit:,} to keep all"
        )


def count_lost_ends(
    lengths: Sequence[int], starts: Sequence[int], limit: int, key: str
) -> tuple[LostEnds, list[int]]:
    """Counts the sequences that `limit` cuts; also returns the kept rows' indices.

    A sequence over the limit is left out if its prompt alone reaches the limit.
    """
    pairs = enumerate(zip(lengths, starts, strict=True))
    rows = [row for row, (length, start) in pairs if length <= limit or start < limit]
    over = [lengths[row] - limit for row in rows if lengths[row] > limit]
    longest = max(lengths, default=0)
    dropped = len(lengths) - len(rows)
    return LostEnds(
        key=key,
        limit=limit,
        longest=longest,
        sequences=len(lengths),
        cut=len(over),
        cut_tokens=sum(over),
        dropped=dropped,
    ), rows
