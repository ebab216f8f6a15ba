"""Search of a suffix array: what most often followed the same tokens, in microseconds.

    array = SuffixArray(tokens_N, rows_N)
    drafts, score = array.drafts(recent_T, first=0, last=len(rows_N), k=8, factor=2.0, least=0.1)

The drafts are those of the suffix tree of arctic-inference 0.1.1 (csrc/suffix_decoding/
suffix_tree.cc), which vLLM's suffix lookup searches, except that a tree chooses the older of
equally frequent tokens and this search the one with the smaller id. A token of a response takes
250 to 290 bytes in the tree and 8 bytes here (benchmarks/results/lookup.md).

Shapes: N tokens of all responses, T recent tokens of a request, K drafts, M matches.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from outrider.speculators.suffix_array import DEPTH, END

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
        """At most `k` drafts after `recent_T`, and their score, from rows `first` to `last - 1`.

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
        start = _first_not_below(tokens_N, rows_N, low, place, offset, token)
        end = _first_not_below(tokens_N, rows_N, place + 1, high, offset, token + 1)
        if token != END and end - start >= smallest:
            best_low = start
            best_high = end
            smallest = end - start + 1
        low = end
    return best_low, best_high


@njit(nogil=True)
def _first_not_below(tokens_N, rows_N, low, high, offset, token):
    """The first row whose token at `offset` is `token` or above."""
    while low < high:
        middle = (low + high) // 2
        if tokens_N[rows_N[middle] + offset] < token:
            low = middle + 1
        else:
            high = middle
    return low
