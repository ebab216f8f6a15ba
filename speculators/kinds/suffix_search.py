"""Search of a suffix array: what most often followed the same tokens, in microseconds.

    array = SuffixArray(tokens_N, rows_N)
    array.drafts(recent_T, first=0, last=len(rows_N), k=8, factor=2.0, least=0.1)
    SearchedHistory(history).drafts(recent_T, tenant_key("acme"), k=8, factor=2.0, least=0.1)

The drafts are those of the suffix tree of arctic-inference 0.1.1 (csrc/suffix_decoding/
suffix_tree.cc), which vLLM's suffix lookup searches, except that a tree chooses the older of
equally frequent tokens and this search the one with the smaller id. A token of a response takes
250 to 290 bytes in the tree and 8 bytes here (benchmarks/results/lookup.md).

Shapes: N tokens of all responses, T recent tokens of a request, K drafts, M matches.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from outrider.speculators.lookup_history import EVERYONE, History, tenant_key
from outrider.speculators.suffix_array import DEPTH, END

_FEW = 64
"""Matches from which a longer match is found by reading the token before each of them."""

_SMALLEST_SHARE = 64
"""A token is drafted only if it follows at least every 64th match."""


def _compiled(function: Any) -> Any:
    """Compiles a function, once per machine where numba has a folder to keep the code in.

    Compiling takes 3 to 8 s of a core in each process, and reading 0.2 s.
    """
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written
        return njit(nogil=True)(function)


class Rows(NamedTuple):
    """A range of rows, and the offset of the tokens by which it is sorted."""

    tokens_N: NDArray[np.int32]
    rows_N: NDArray[np.int32]
    low: int
    high: int
    offset: int


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
    ) -> tuple[NDArray[np.int32], float, int]:
        """At most `k` drafts after `recent_T`, from rows `first` to `last - 1`.

        Also returns their score, and the length of the match that they follow.

        A match of m tokens drafts at most m * `factor` tokens. The score is the sum of the drafts'
        probabilities, each at least `least`: the share of the matches that continue with the drafts
        so far. Of all lengths of a match, the drafts with the best score are returned.
        """
        drafts_K = np.empty(k, np.int32)
        rows = Rows(self._tokens_N, self._rows_N, low=first, high=last, offset=0)
        limits = (np.float32(factor), np.float32(least))
        count, score, length = _search(rows, recent_T[-DEPTH:], limits, drafts_K)
        return drafts_K[:count], score, length


class SearchedHistory:
    """Finds each tenant's drafts in a history."""

    def __init__(self, history: History) -> None:
        self._array = SuffixArray(history.tokens_N, history.rows_N)
        # Compiles the search, so that no request waits for it.
        self._array.drafts(np.zeros(2, np.int32), first=0, last=0, k=1, factor=1.0, least=0.1)
        bounds = zip(history.firsts_G[:-1], history.firsts_G[1:], strict=True)
        keys = map(bytes, history.tenants_G)
        self._bounds = {
            key: (int(first), int(last)) for key, (first, last) in zip(keys, bounds, strict=True)
        }
        if len(self._bounds) == 1:
            # An endpoint with one tenant need not send its name.
            (only,) = self._bounds.values()
            self._bounds.setdefault(tenant_key(None), only)

    def drafts(
        self,
        recent_T: NDArray[np.int32],
        tenant: bytes | None,
        *,
        k: int,
        factor: float,
        least: float,
    ) -> tuple[NDArray[np.int32], float, int]:
        """Drafts from the responses that `tenant` may see, score and length of the match.

        As `SuffixArray.drafts` returns them.
        """
        bounds = self._bounds.get(EVERYONE) or self._bounds.get(tenant or b"")
        if bounds is None:
            return np.empty(0, np.int32), 0.0, 0
        first, last = bounds
        return self._array.drafts(recent_T, first=first, last=last, k=k, factor=factor, least=least)


@_compiled
def _search(rows: Rows, recent_T: Any, limits: Any, drafts_K: Any) -> Any:
    """Writes the best drafts to `drafts_K`; returns their number, score and match length.

    As `SuffixTree::speculate`: every length of a match but that of all of `recent_T`; of equal
    scores the longest match's. Counting what follows many matches is slow, so short matches come
    last, and only those that can have a better score than long ones.
    """
    factor, least = limits
    total = len(recent_T)
    path_K = np.empty_like(drafts_K)
    ends_M = np.empty(_FEW, np.int32)
    ranges_L2 = np.empty((total, 2), np.int64)
    few = 0
    many = 0
    best_count = 0
    best_length = 0
    best_score = np.float32(0)
    for length in range(1, total):
        if few == 0:
            low, high = _range(rows, recent_T[total - length :])
            if high - low > _FEW:
                many = length
                ranges_L2[length] = low, high
                continue
            few = high - low
            ends_M[:few] = rows.rows_N[low:high] + length
        else:
            few = _longer(rows.tokens_N, ends_M[:few], length, recent_T[total - length])
        if few == 0:
            break
        most = _most(length, factor, drafts_K)
        matched = Rows(rows.tokens_N, rows_N=ends_M, low=0, high=few, offset=0)
        count, score = _path(matched, least, path_K[:most])
        if score >= best_score:
            best_count = count
            best_length = length
            best_score = score
            drafts_K[:count] = path_K[:count]
    for length in range(many, 0, -1):
        most = _most(length, factor, drafts_K)
        if most <= best_score:
            continue
        low, high = ranges_L2[length]
        matched = Rows(rows.tokens_N, rows.rows_N, low=low, high=high, offset=length)
        count, score = _path(matched, least, path_K[:most])
        if score > best_score:
            best_count = count
            best_length = length
            best_score = score
            drafts_K[:count] = path_K[:count]
    return best_count, best_score, best_length


@_compiled
def _most(length: int, factor: float, drafts_K: Any) -> int:
    """The most drafts after a match of `length` tokens, and so the largest score."""
    return min(len(drafts_K), int(length * factor + np.float32(1e-6)), DEPTH - length)


@_compiled
def _longer(tokens_N: Any, ends_M: Any, length: int, token: int) -> int:
    """Keeps the matches with `token` in front; they stay sorted by what follows."""
    count = 0
    for end in ends_M:
        before = end - length
        if before >= 0 and tokens_N[before] == token:
            ends_M[count] = end
            count += 1
    return count


@_compiled
def _range(rows: Rows, text_T: Any) -> Any:
    """First and last of the rows whose text begins with `text_T`."""
    low = _bound(rows, text_T, False)
    after = Rows(rows.tokens_N, rows.rows_N, low=low, high=rows.high, offset=0)
    return low, _bound(after, text_T, True)


@_compiled
def _bound(rows: Rows, text_T: Any, after: bool) -> int:
    """First row whose text is not before `text_T`; with `after`, that is behind it."""
    low = rows.low
    high = rows.high
    while low < high:
        middle = (low + high) // 2
        row = rows.rows_N[middle]
        is_before = after
        for index in range(len(text_T)):
            token = rows.tokens_N[row + index]
            if token != text_T[index]:
                is_before = token < text_T[index]
                break
        if is_before:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _path(matched: Rows, least: float, path_K: Any) -> Any:
    """Follows the most frequent token from the matched rows, as `_speculate_path`."""
    count = 0
    low = matched.low
    high = matched.high
    probability = np.float32(1)
    score = np.float32(0)
    while count < len(path_K) and low < high:
        matches = high - low
        offset = matched.offset + count
        smallest = max(1, int(least * matches / probability), matches // _SMALLEST_SHARE)
        rows = Rows(matched.tokens_N, matched.rows_N, low=low, high=high, offset=offset)
        low, high = _longest_run(rows, smallest)
        probability *= np.float32(high - low) / np.float32(matches)
        if low == high or probability < least:
            break
        path_K[count] = matched.tokens_N[matched.rows_N[low] + offset]
        score += probability
        count += 1
    return count, score


@_compiled
def _longest_run(rows: Rows, smallest: int) -> Any:
    """The longest run of one token, at least `smallest` rows; an empty range without one.

    A run of n rows has a row at every n-th place, so only every n-th is read.
    """
    low = rows.low
    best_low = low
    best_high = low
    while low + smallest <= rows.high:
        middle = low + smallest - 1
        token = rows.tokens_N[rows.rows_N[middle] + rows.offset]
        start = _first_not_below(rows, low, middle, token)
        end = _first_not_below(rows, middle + 1, rows.high, token + 1)
        if token != END and end - start >= smallest:
            best_low = start
            best_high = end
            smallest = end - start + 1
        low = end
    return best_low, best_high


@_compiled
def _first_not_below(rows: Rows, low: int, high: int, token: int) -> int:
    """First row from `low` to `high` whose token at the offset is `token` or above."""
    while low < high:
        middle = (low + high) // 2
        if rows.tokens_N[rows.rows_N[middle] + rows.offset] < token:
            low = middle + 1
        else:
            high = middle
    return low
