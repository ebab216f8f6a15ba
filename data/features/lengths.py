"""Sequences that are longer than the engine prefills are cut at their end.

    table, lengths = fit(table, EngineConfig().max_model_len)
    print(lengths.describe())   # ... of 720 responses 2 lose their end (512 tokens) ...

A cut keeps the beginning: the prompt and the first tokens of the completion, whose states do not
depend on what follows. Where the prompt alone reaches the limit nothing is left to train on, and
the sequence is dropped.
"""

from collections.abc import Sequence

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.lost_ends import LostEnds, lost_ends


def longest(max_model_len: int) -> int:
    """Tokens that an engine prefills: it also samples one."""
    return max_model_len - 1


def lengths_of(
    lengths: Sequence[int], starts: Sequence[int], max_model_len: int
) -> tuple[LostEnds, list[int]]:
    """Counts what the limit cuts, and finds the rows that are kept."""
    key = f"serving.engine.max_model_len = {max_model_len:,}"
    return lost_ends(lengths, starts, longest(max_model_len), key)


def fit(table: Dataset, max_model_len: int) -> tuple[Dataset, LostEnds]:
    """The table without the dropped rows, and what happened.

    Rows that are cut stay whole in the table: capture reads their first `LostEnds.limit` tokens.

    Raises:
        OutriderError: none is left.
    """
    lengths = [len(token_ids) for token_ids in table["token_ids"]]
    found, kept = lengths_of(lengths, table["completion_start"][:], max_model_len)
    if not kept:
        raise OutriderError(
            f"serving.engine.max_model_len = {max_model_len}: none of {len(lengths)} sequences is"
            f" left; raise it, up to {max(lengths) + 1}"
        )
    return (table.select(kept) if found.dropped else table), found
