"""Sequences that are longer than the engine prefills: cut at their end, dropped, or an error.

    table, lengths = fit(table, EngineConfig().max_model_len, "cut")
    print(lengths.describe())   # ... of 720 responses 2 lose their end (512 tokens) ...

A cut keeps the beginning: the prompt and the first tokens of the completion, whose states do not
depend on what follows. Where the prompt alone reaches the limit nothing is left to train on, and
the sequence is dropped.
"""

from collections.abc import Sequence

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.lost_ends import LostEnds, lost_ends
from outrider.data.config import TooLong


def longest(max_model_len: int) -> int:
    """Tokens that an engine prefills: it also samples one."""
    return max_model_len - 1


def lengths_of(
    lengths: Sequence[int], starts: Sequence[int], max_model_len: int, too_long: TooLong
) -> tuple[LostEnds, list[int]]:
    """What happens to sequences of these lengths and completion starts; the rows that are kept."""
    key = f"serving.engine.max_model_len = {max_model_len:,}"
    return lost_ends(lengths, starts, longest(max_model_len), key, too_long == "cut")


def fit(table: Dataset, max_model_len: int, too_long: TooLong) -> tuple[Dataset, LostEnds]:
    """The table without the dropped rows, and what happened.

    Rows that are cut stay whole in the table: capture reads their first `LostEnds.limit` tokens.

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
