"""Suffix array: the positions of all tokens, sorted by the tokens that follow.

    rows_N = suffix_array(tokens_N)

The rows whose text begins with given tokens are therefore contiguous, and so are, among them, those
that continue with the same token. kinds/suffix_search.py drafts from them.

Shapes: N tokens of all responses, each response followed by END.
"""

import numpy as np
from numpy.typing import NDArray

DEPTH = 24
"""Tokens of a match and its drafts together: vLLM's default (vllm/config/speculative.py:505)."""

END = -1
"""Follows the tokens of every response, so that no match goes from one to the next."""


def suffix_array(tokens_N: NDArray[np.int32]) -> NDArray[np.int32]:
    """The positions of all tokens but END, sorted by the DEPTH tokens from there.

    Prefix doubling (Manber and Myers): ranks of 2h tokens are sorted pairs of ranks of h tokens.
    """
    size = len(tokens_N)
    if not size:
        return np.empty(0, np.int32)
    order_N, ranks_N = _ranked(tokens_N.astype(np.int64))
    compared = 1
    while compared < DEPTH and ranks_N[order_N[-1]] < size - 1:
        pairs_N = ranks_N * (size + 1)
        pairs_N[:-compared] += ranks_N[compared:] + 1
        order_N, ranks_N = _ranked(pairs_N)
        compared *= 2
    return order_N[tokens_N[order_N] != END].astype(np.int32)


def _ranked(keys_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order of the keys, and each key's rank among the different keys."""
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = keys_N[order_N]
    ranks_N = np.zeros(len(keys_N), np.int64)
    ranks_N[order_N[1:]] = np.cumsum(sorted_N[1:] != sorted_N[:-1])
    return order_N, ranks_N
