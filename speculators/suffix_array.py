"""Suffix array: drafts what most often followed the same tokens in many responses.

    rows_N = suffix_array(tokens_N)                       # once, when a history is written
    search = SuffixArray(tokens_N, rows_N)
    drafts, score = search.drafts(recent_T, k=8, factor=2.0, least=0.1)

The drafts are those of the suffix tree of arctic-inference 0.1.1 (csrc/suffix_decoding/
suffix_tree.cc), which vLLM's suffix lookup searches. Its nodes take 210 bytes or more, about 500
bytes for each token of a response; here a token takes 8 (benchmarks/lookup_memory.py).

The rows are the positions of all tokens, sorted by the DEPTH tokens that follow. The rows whose
text begins with given tokens are therefore contiguous, and so are, among them, those that continue
with the same token.

Shapes: N tokens of all responses, each response followed by END; T recent tokens of a request.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

DEPTH = 24
"""Tokens of a match and its drafts together: vLLM's default (vllm/config/speculative.py:505)."""

END = -1
"""Follows the tokens of every response, so that no match goes from one to the next."""

_FEW = 64
"""Matches from which a longer match is found by reading the token before each of them."""

_SMALLEST_SHARE = 64
"""A token is drafted only if it follows at least every 64th match."""


class SuffixArray:
    """Responses in the order of their suffixes; search takes microseconds."""

    def __init__(self, tokens_N: NDArray[np.int32], rows_N: NDArray[np.int32]) -> None:
        """`tokens_N` ends with DEPTH times END, so that no row leads out of it."""
        self._tokens_N = tokens_N
        self._rows_N = rows_N

    def drafts(
        self,
        recent_T: NDArray[np.int32],
        *,
        first: int,
        last: int,
        k: int,
        factor: float,
        least: float,
    ) -> tuple[NDArray[np.int32], float]:
        """At most `k` drafts after `recent_T`, and their score, from rows `first` to `last`.

        A match of m tokens drafts at most m * `factor` tokens. The score is the sum of the drafts'
        probabilities, each at least `least`: the share of the matches that continue with the drafts
        so far. Of all lengths of a match, the drafts with the best score are returned.
        """
        drafts_K = np.empty(k, np.int32)
        count, score = _search(
            self._tokens_N,
            self._rows_N,
            first,
            last,
            recent_T[-DEPTH:],
            np.float32(factor),
            np.float32(least),
            drafts_K,
        )
        return drafts_K[:count], score


def suffix_array(tokens_N: NDArray[np.int32]) -> NDArray[np.int32]:
    """The positions of all tokens but END, sorted by the DEPTH tokens from there.

    Prefix doubling (Manber and Myers): ranks of 2h tokens are sorted pairs of ranks of h tokens.
    """
    size = len(tokens_N)
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


@njit(nogil=True)
def _search(tokens_N, rows_N, first, last, recent_T, factor, least, drafts_K):
    """Writes the best drafts to `drafts_K`; returns their number and score.

    As `SuffixTree::speculate`: every length of a match but that of all of `recent_T`; of equal
    scores the longest match's.
    """
    total = len(recent_T)
    path_K = np.empty_like(drafts_K)
    ends_M = np.empty(_FEW, np.int32)
    few = 0
    best_count = 0
    best_score = np.float32(0)
    for length in range(1, total):
        start = total - length
        if few == 0:
            low = _bound(tokens_N, rows_N, first, last, recent_T[start:], False)
            high = _bound(tokens_N, rows_N, low, last, recent_T[start:], True)
            matches = high - low
            if 0 < matches <= _FEW:
                few = matches
                for match in range(few):
                    ends_M[match] = rows_N[low + match] + length
        else:
            few = _longer(tokens_N, ends_M, few, length, recent_T[start])
            matches = few
        if matches == 0:
            break
        most = min(len(drafts_K), int(length * factor + np.float32(1e-6)), DEPTH - length)
        if few > 0:
            count, score = _path(tokens_N, ends_M, 0, few, 0, most, least, path_K)
        else:
            count, score = _path(tokens_N, rows_N, low, high, length, most, least, path_K)
        if score >= best_score:
            best_count = count
            best_score = score
            drafts_K[:count] = path_K[:count]
    return best_count, best_score


@njit(nogil=True)
def _longer(tokens_N, ends_M, few, length, token):
    """Keeps the matches with `token` in front; they stay sorted by what follows."""
    kept = 0
    for match in range(few):
        before = ends_M[match] - length
        if before >= 0 and tokens_N[before] == token:
            ends_M[kept] = ends_M[match]
            kept += 1
    return kept


@njit(nogil=True)
def _bound(tokens_N, rows_N, low, high, text_T, after):
    """First row whose text is not before `text_T`; with `after`, that is behind it."""
    while low < high:
        middle = (low + high) // 2
        row = rows_N[middle]
        is_before = after
        for index in range(len(text_T)):
            token = tokens_N[row + index]
            if token != text_T[index]:
                is_before = token < text_T[index]
                break
        if is_before:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True)
def _path(tokens_N, rows_N, low, high, offset, most, least, path_K):
    """Follows the most frequent token from rows `low` to `high`, as `_speculate_path`."""
    count = 0
    probability = np.float32(1)
    score = np.float32(0)
    while count < most and low < high:
        matches = high - low
        smallest = max(1, int(least * matches / probability), matches // _SMALLEST_SHARE)
        low, high = _longest_run(tokens_N, rows_N, low, high, offset, smallest)
        probability *= np.float32(high - low) / np.float32(matches)
        if low == high or probability < least:
            break
        path_K[count] = tokens_N[rows_N[low] + offset]
        score += probability
        count += 1
        offset += 1
    return count, score


@njit(nogil=True)
def _longest_run(tokens_N, rows_N, low, high, offset, smallest):
    """The longest run of one token, at least `smallest` rows; an empty range without one.

    A run of n rows has a row at every n-th place, so only every n-th is read.
    """
    best_low = low
    best_high = low
    while low + smallest <= high:
        place = low + smallest - 1
        token = tokens_N[rows_N[place] + offset]
        text_T = np.full(1, token, np.int32)
        run_low = low
        run_high = place
        while run_low < run_high:
            middle = (run_low + run_high) // 2
            if tokens_N[rows_N[middle] + offset] < token:
                run_low = middle + 1
            else:
                run_high = middle
        start = run_low
        run_low = place + 1
        run_high = high
        while run_low < run_high:
            middle = (run_low + run_high) // 2
            if tokens_N[rows_N[middle] + offset] > token:
                run_high = middle
            else:
                run_low = middle + 1
        if token != END and run_low - start >= smallest:
            best_low = start
            best_high = run_low
            smallest = run_low - start + 1
        low = run_low
    return best_low, best_high
