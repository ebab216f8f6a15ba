"""Suffix lookup: drafts what most often followed the same tokens, in all responses so far.

    directory = SuffixLookup().prepare(responses, folder)
    lookup = Lookup("suffix", {"suffix_decoding_max_spec_factor": 2.0}, directory / HISTORY_FILE)
    SuffixLookup().drafts(token_ids_T, first=10, numbers=[4, 8], lookup=lookup)

It searches the request and the responses to earlier requests. An evaluation fixes the latter to the
training part's, for replay and servers alike: the servers answer the same prompts several times,
and must not find their own answers.

Shapes: T tokens of a sequence, A anchors, N numbers of drafts per step, K drafts.
"""

import collections
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.kinds.protocol import (
    NO_DRAFT,
    Lookup,
    Matches,
    Settings,
    WeightlessKind,
)
from outrider.speculators.kinds.suffix_package import INSTALL

# vllm/config/speculative.py:505 and 509 (vLLM 0.32).
DEPTH, CACHED = 24, 10_000
"""vLLM's defaults for suffix lookup: tokens of a match, and responses that are searched."""

FACTOR, PROBABILITY = "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"
"""vLLM's keys for the drafts per matched token and for the least share of each draft."""

HISTORY = "OUTRIDER_SUFFIX_HISTORY"
"""Environment variable with the path of earlier responses, as `write_history` writes them."""

HISTORY_FILE = "history.npz"
"""Name of that file in a speculator's directory."""


class SuffixLookup(WeightlessKind):
    """Drafts what most often followed the longest match in request and earlier responses."""

    name = "suffix"
    in_words = "suffix lookup"
    source_of_drafts = (
        "what most often followed the same tokens in the request and in the responses to earlier"
        " requests"
    )
    serving_note = f"vLLM keeps these responses in memory, and needs a package for it: `{INSTALL}`."

    # vllm/config/speculative.py:515 and 520 (vLLM 0.32).
    default_settings: ClassVar[Settings] = {FACTOR: 1.0, PROBABILITY: 0.1}
    searched_settings: ClassVar[Sequence[Settings]] = tuple(
        {FACTOR: factor, PROBABILITY: probability}
        for factor, probability in itertools.product((1.0, 2.0, 4.0), (0.3, 0.1))
    )

    def require_installed(self) -> None:
        """Raises an `OutriderError` without arctic-inference, which vLLM does not depend on."""
        fixed_cache(None)

    def prepare(self, responses: Iterable[Sequence[int]], folder: Path) -> Path:
        """Writes the earlier responses that are searched to HISTORY_FILE."""
        write_history(folder / HISTORY_FILE, responses)
        return folder

    def environment(self, directory: Path | None) -> dict[str, str]:
        """Names the history's file to the engine's process."""
        history = self.history(directory)
        return {HISTORY: str(history.resolve())} if history else {}

    def history(self, directory: Path | None) -> Path | None:
        """HISTORY_FILE in the directory."""
        return directory / HISTORY_FILE if directory else None

    def hook_engine(self) -> None:
        """Gives vLLM's proposer the responses of HISTORY and no others, and any number of drafts.

        Without HISTORY, as in a deployed engine, vLLM is unchanged.
        """
        if HISTORY not in os.environ:
            return
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        start = SuffixDecodingProposer.__init__
        propose = SuffixDecodingProposer.propose
        if start.__module__ == __name__:
            return

        def init(self: Any, *args: Any) -> None:
            start(self, *args)
            self.suffix_cache = fixed_cache(Path(os.environ[HISTORY]))

        def propose_up_to(self: Any, k: int, *args: Any, **kwargs: Any) -> list[list[int]]:
            self.num_speculative_tokens = k  # vLLM 0.32 refuses any but the first
            return propose(self, k, *args, **kwargs)

        SuffixDecodingProposer.__init__ = init  # type: ignore[method-assign, assignment]
        SuffixDecodingProposer.propose = propose_up_to  # type: ignore[method-assign, assignment]

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        """Queries vLLM's cache at each anchor at which a step starts, for every number of drafts.

        Another number may give another match the best score, so each has queries of its own.
        """
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_NAK = np.full((len(numbers), anchors, max(numbers)), NO_DRAFT, np.int32)
        settings = {**self.default_settings, **lookup.settings}
        cache = fixed_cache(lookup.history)
        cache.start_request(self.name, token_ids_T[:first])
        # The prefill delivers the token of anchor 0, where the first step starts.
        next_N = [0] * len(numbers)
        for anchor in range(anchors):
            end = first + anchor + 1
            cache.add_active_response(self.name, token_ids_T[end - 1 : end])
            if anchor not in next_N:
                continue
            recent_T = token_ids_T[max(end - DEPTH, 0) : end]
            for row, number in enumerate(numbers):
                if next_N[row] != anchor:
                    continue
                match = cache.speculate(
                    self.name,
                    recent_T,
                    max_spec_tokens=number,
                    max_spec_factor=settings[FACTOR],
                    min_token_prob=settings[PROBABILITY],
                )
                drafted = np.array(match.token_ids, np.int32)
                drafts_NAK[row, anchor, : len(drafted)] = drafted
                next_N[row] = anchor + 1 + _accepted(drafted, token_ids_T[end:])
        cache.stop_request(self.name)
        return drafts_NAK

    def matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Iterator[Any]:
        """Yields the cache's answer at every anchor: `token_ids`, at most k, and their `score`."""
        settings = {**self.default_settings, **lookup.settings}
        cache = fixed_cache(lookup.history)
        cache.start_request(self.name, token_ids_T[:first])
        for end in range(first + 1, len(token_ids_T)):
            cache.add_active_response(self.name, token_ids_T[end - 1 : end])
            yield cache.speculate(
                self.name,
                token_ids_T[max(end - DEPTH, 0) : end],
                max_spec_tokens=k,
                max_spec_factor=settings[FACTOR],
                min_token_prob=settings[PROBABILITY],
            )
        cache.stop_request(self.name)

    def all_matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Matches:
        """Queries vLLM's cache at every anchor."""
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_AK = np.full((anchors, k), NO_DRAFT, np.int32)
        score_A = np.zeros(anchors)
        length_A = np.zeros(anchors, np.int64)
        for anchor, match in enumerate(self.matches(token_ids_T, first, k, lookup)):
            drafts_AK[anchor, : len(match.token_ids)] = match.token_ids
            score_A[anchor] = match.score
            length_A[anchor] = match.match_len
        return Matches(drafts_AK, score_A, length_A)


def _accepted(drafts_K: NDArray[np.int32], next_T: NDArray[np.int32]) -> int:
    """The number of drafts before the first that differs from the tokens that follow."""
    inside = min(len(drafts_K), len(next_T))
    differs = drafts_K[:inside] != next_T[:inside]
    return int(differs.argmax()) if differs.any() else inside


def write_history(path: Path, responses: Iterable[Sequence[int]]) -> None:
    """Writes the newest responses for suffix lookup, for this user only."""
    newest = [np.array(ids, np.int32) for ids in collections.deque(responses, maxlen=CACHED)]
    with publish(path) as temporary:
        temporary.touch(mode=0o600)
        with temporary.open("wb") as file:
            np.savez(file, tokens=np.concatenate(newest), ends=np.cumsum([*map(len, newest)]))


@functools.cache
def fixed_cache(history: Path | None) -> Any:
    """vLLM's cache for suffix lookup, with the responses of `history` and no others.

    Raises an `OutriderError` if the package that vLLM needs for it is missing.
    """
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError:
        raise OutriderError(
            f"suffix lookup: vLLM needs a package for it; run `{INSTALL}`, which takes a minute"
        ) from None

    cache = SuffixDecodingCache(DEPTH, -1)
    if history is not None:
        with np.load(history) as stored:
            for number, ids_T in enumerate(np.split(stored["tokens"], stored["ends"][:-1])):
                cache.start_request(number, ids_T[:0])
                cache.add_active_response(number, ids_T)
                cache.stop_request(number)
    # Live responses then extend only the tree of their own request (arctic-inference 0.1.1,
    # suffix_decoding/cache.py). In the shared tree they would be found by other requests, in an
    # evaluation by those with the same prompts, and their order would decide between equal matches.
    cache._max_cached_requests = 0
    return cache
