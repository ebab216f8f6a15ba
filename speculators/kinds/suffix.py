"""Suffix lookup: drafts what most often followed the same tokens, in all responses so far.

    os.environ.update(SuffixLookup().prepare(responses, folder))
    SuffixLookup().drafts(token_ids_T, first=10, k=4)    # vLLM's own cache at every anchor

It searches the request and the responses to earlier requests. An evaluation fixes the latter to the
training part's, for replay and servers alike: the servers answer the same prompts several times,
and must not find their own answers.

Shapes: T tokens of a sequence, A anchors, K drafts.
"""

import collections
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.kinds.protocol import NO_DRAFT, WeightlessKind
from outrider.speculators.kinds.suffix_package import INSTALL

# vllm/config/speculative.py:505 and 509 (vLLM 0.32).
DEPTH, CACHED = 24, 10_000
"""vLLM's defaults for suffix lookup: tokens of a match, and responses that are searched."""

HISTORY = "OUTRIDER_SUFFIX_HISTORY"
"""Environment variable with the path of earlier responses, as `write_history` writes them."""

class SuffixLookup(WeightlessKind):
    """Drafts what most often followed the longest match in request and earlier responses."""

    name = "suffix"
    in_words = "suffix lookup"
    source_of_drafts = (
        "what most often followed the same tokens in the request and in the responses to earlier"
        " requests"
    )
    serving_note = f"vLLM keeps these responses in memory, and needs a package for it: `{INSTALL}`."

    def require_installed(self) -> None:
        """Raises an `OutriderError` without arctic-inference, which vLLM does not depend on."""
        fixed_cache(None)

    def prepare(self, responses: Iterable[Sequence[int]], folder: Path) -> dict[str, str]:
        """Writes the earlier responses that are searched, and names their file in HISTORY."""
        path = folder / "history.npz"
        write_history(path, responses)
        return {HISTORY: str(path.resolve())}

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
            self.suffix_cache = fixed_cache(os.environ[HISTORY])

        def propose_up_to(self: Any, k: int, *args: Any, **kwargs: Any) -> list[list[int]]:
            self.num_speculative_tokens = k  # vLLM 0.32 refuses any but the first
            return propose(self, k, *args, **kwargs)

        SuffixDecodingProposer.__init__ = init  # type: ignore[method-assign, assignment]
        SuffixDecodingProposer.propose = propose_up_to  # type: ignore[method-assign, assignment]

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Queries vLLM's cache after every token.

        With fewer than k drafts, another match may have the best score, so for those the replay is
        an approximation.
        """
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_AK = np.full((anchors, k), NO_DRAFT, np.int32)
        for row_K, match in zip(drafts_AK, self.matches(token_ids_T, first, k), strict=True):
            row_K[: len(match.token_ids)] = match.token_ids
        return drafts_AK

    def matches(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> Iterator[Any]:
        """Yields the cache's answer at each anchor: `token_ids`, at most k, and their `score`."""
        cache = fixed_cache(os.environ.get(HISTORY))
        cache.start_request(self.name, token_ids_T[:first])
        for end in range(first + 1, len(token_ids_T)):
            cache.add_active_response(self.name, token_ids_T[end - 1 : end])
            recent_T = token_ids_T[max(end - DEPTH, 0) : end]
            yield cache.speculate(self.name, recent_T, max_spec_tokens=k)
        cache.stop_request(self.name)


def write_history(path: Path, responses: Iterable[Sequence[int]]) -> None:
    """Writes the newest responses for suffix lookup, for this user only."""
    newest = [np.array(ids, np.int32) for ids in collections.deque(responses, maxlen=CACHED)]
    with publish(path) as temporary:
        temporary.touch(mode=0o600)
        with temporary.open("wb") as file:
            np.savez(file, tokens=np.concatenate(newest), ends=np.cumsum([*map(len, newest)]))


@functools.cache
def fixed_cache(history: str | None) -> Any:
    """vLLM's cache for suffix lookup, with the responses of `history` and no others.

    Raises an `OutriderError` if the package that vLLM needs for it is missing.
    """
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError:
        raise OutriderError(
            f"suffix lookup: vLLM needs a package for it; run `{INSTALL}`, which takes a minute"
        ) from None

    class Fixed(SuffixDecodingCache):
        def stop_request(self, req_id: Any) -> None:
            # vLLM's own cache would keep the response for later requests, here the same prompts.
            super().stop_request(req_id)
            self.evict_cached_response(req_id)

    cache = Fixed(DEPTH, -1)
    if history is not None:
        with np.load(history) as stored:
            for number, ids_T in enumerate(np.split(stored["tokens"], stored["ends"][:-1])):
                cache.start_request(number, ids_T[:0])
                cache.add_active_response(number, ids_T)
                SuffixDecodingCache.stop_request(cache, number)
    return cache
