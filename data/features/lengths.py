"""Sequences that are longer than the engine prefills: cut at their end, dropped, or an error.

    table, lengths = fit(table, EngineConfig().max_model_len, "cut")
    print(lengths.describe())   # 3 of 720 sequences exceed 2,047 tokens: 2 cut by 512 tokens, ...

A cut keeps the beginning: the prompt and the first tokens of the completion, whose states do not
depend on what follows. Where the prompt alone reaches the limit nothing is left to train on, and
the sequence is dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.config import TooLong


class Lengths(NamedTuple):
    """What `fit` did; all counts but `limit` are 0 where every sequence fits."""

    limit: int
    """Largest number of tokens that the engine prefills."""
    sequences: int
    cut: int
    cut_tokens: int
    """Tokens of the cut sequences that are not captured."""
    dropped: int

    def describe(self) -> str:
        """One line for a person; empty where every sequence fits."""
        if not self.cut + self.dropped:
            return ""
        done = []
        if self.cut:
            done.append(f"{self.cut:,} cut by {self.cut_tokens:,} tokens at the end")
        if self.dropped:
            done.append(f"{self.dropped:,} dropped")
        return (
            f"{self.cut + self.dropped:,} of {self.sequences:,} sequences exceed {self.limit:,}"
            f" tokens (serving.engine.max_model_len): {' and '.join(done)} (capture.too_long)"
        )


def longest(max_model_len: int) -> int:
    """Tokens that an engine prefills: it also samples one."""
    return max_model_len - 1


def lengths_of(
    lengths: Sequence[int], starts: Sequence[int], max_model_len: int, too_long: TooLong
) -> tuple[Lengths, list[int]]:
    """What happens to sequences of these lengths and completion starts; the rows that are kept."""
    limit, kept, cut, cut_tokens = longest(max_model_len), [], 0, 0
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        over = max(length - limit, 0)
        if not over or (too_long == "cut" and start < limit):
            kept.append(row)
            cut, cut_tokens = cut + bool(over), cut_tokens + over
    return Lengths(limit, len(lengths), cut, cut_tokens, len(lengths) - len(kept)), kept


def fit(table: Dataset, max_model_len: int, too_long: TooLong) -> tuple[Dataset, Lengths]:
    """The table without the dropped rows, and what happened.

    Rows that are cut stay whole in the table: capture reads their first `Lengths.limit` tokens.

    Raises:
        OutriderError: a sequence does not fit and `too_long` is `fail`, or none is left.
    """
    lengths = [len(token_ids) for token_ids in table["token_ids"]]
    found, kept = lengths_of(lengths, table["completion_start"][:], max_model_len, too_long)
    if too_long == "fail" and found.dropped:
        row = max(range(len(lengths)), key=lengths.__getitem__)
        raise OutriderError(
            f"serving.engine.max_model_len = {max_model_len}: {found.dropped} of {len(lengths)}"
            f" sequences do not fit (the longest, {table['sequence_id'][row]}, has {lengths[row]}"
            f" tokens); set it to at least {lengths[row] + 1}, or capture.too_long to cut or drop"
        )
    if not kept:
        raise OutriderError(
            f"serving.engine.max_model_len = {max_model_len}: none of {len(lengths)} sequences is"
            f" left (capture.too_long = {too_long}); raise it, up to {max(lengths) + 1}"
        )
    return (table.select(kept) if found.dropped else table), found
