"""Draft vocabulary: the most frequent tokens of the customer's responses.

    counts_V = token_counts(responses, vocab)            # of the training part only
    ids_D = chosen_ids(counts_V, 0.999)                  # a share or a size
    ids_D = mixed_ids(base_ids_D, counts_FV)             # a base's, and the customer's
    coverage(counts_V, ids_D)                            # of these or other responses

Only response tokens are drafted, so prompts are not counted. A token outside the draft vocabulary
is never drafted, so no step accepts drafts past it.

Shapes: V target vocabulary, D draft vocabulary, F parts of the responses.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from outrider.common.errors import OutriderError

BASE_OCCURRENCES = (16.5, 8.5, 4.5, 2.5, 1.5, 0.5, 0.0)
"""Additional occurrences of a base's token that are tried; a half prefers it to an equally frequent
one."""


def token_counts(responses: Iterable[Tensor], vocab: int) -> Tensor:
    """Number of occurrences of each token in the responses, [V] int64."""
    counts_V = torch.zeros(vocab, dtype=torch.long)
    for token_ids in responses:
        counts_V += torch.bincount(token_ids.long(), minlength=vocab)
    return counts_V


def chosen_ids(counts_V: Tensor, size: int | float) -> Tensor | None:
    """Target token ids [D] that can be drafted, ascending; None for all.

    `size` is a share (below 1) of the response tokens, or a number of tokens. Equally frequent
    tokens are ordered by id. If too few tokens occur, the lowest remaining ids are added.
    """
    vocab = len(counts_V)
    order_V = counts_V.argsort(descending=True, stable=True)
    if isinstance(size, int):
        if size > vocab:
            raise OutriderError(
                f"speculator.head.draft_vocabulary = {size}, but the target's vocabulary has"
                f" {vocab} tokens; use fewer, or a share of the response tokens such as 0.999"
            )
        count = size
    else:
        total = int(counts_V.sum())
        if total == 0:
            raise OutriderError(
                "speculator.head.draft_vocabulary: the training part has no response tokens to"
                " choose from; add traffic, or set a number of tokens"
            )
        reached_V = counts_V[order_V].cumsum(0).double() / total
        count = int((reached_V < size - 1e-12).sum()) + 1
    # At least 2: with one draft token the head's softmax is constant and nothing is learned.
    ids_D = order_V[: max(count, 2)].sort().values
    return None if len(ids_D) == vocab else ids_D


def mixed_ids(base_ids_D: Tensor, counts_FV: Tensor) -> Tensor:
    """As many ids [D] as the base has, of the base's tokens and the most frequent of the traffic.

    A token of the base counts as a number of additional occurrences, since the base was trained on
    more text. The number is chosen by cross-validation: ids that are chosen from all parts but one
    are to cover most of that part's tokens. If nothing covers more than the base's own ids, these
    are returned, so that a small log does not exchange what the base has learned to draft.
    """
    total_V = counts_FV.sum(0)
    ids_D = base_ids_D
    best = int(counts_FV[:, base_ids_D].sum())
    for occurrences in BASE_OCCURRENCES:
        covered = 0
        for counts_V in counts_FV:
            others_D = _weighted_ids(base_ids_D, total_V - counts_V, occurrences)
            covered += int(counts_V[others_D].sum())
        if covered > best:
            best = covered
            ids_D = _weighted_ids(base_ids_D, total_V, occurrences)
    return ids_D


def _weighted_ids(base_ids_D: Tensor, counts_V: Tensor, occurrences: float) -> Tensor:
    """As many ids [D] of the most frequent tokens, with additional occurrences of the base's."""
    # Doubled, so that halves are integers.
    added_V = torch.zeros_like(counts_V).index_fill_(0, base_ids_D, int(2 * occurrences))
    ids_D = chosen_ids(2 * counts_V + added_V, len(base_ids_D))
    return base_ids_D if ids_D is None else ids_D


def coverage(counts_V: Tensor, ids_D: Tensor | None) -> float:
    """Share of the counted tokens that can be drafted; 1 if nothing was counted."""
    total = int(counts_V.sum())
    return 1.0 if ids_D is None or total == 0 else int(counts_V[ids_D].sum()) / total
