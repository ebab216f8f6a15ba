"""Kinds without weights: n-gram and suffix lookup, and no speculation.

They are served and measured for comparison; there is nothing to train or swap. Their drafts depend
only on the text, so replay needs no states.

    NGramLookup().drafts(token_ids_T, first=10, k=4)    # vLLM's own proposer at every anchor

Suffix lookup also searches the responses to earlier requests. An evaluation fixes these to the
training part's, for replay and servers alike: the servers answer the same prompts several times,
and must not find their own answers.

Shapes: T tokens of a sequence, A anchors, K drafts.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.kinds.protocol import DrafterKind

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Range of n-gram lengths; vLLM's documentation uses a maximum of 4."""

DEPTH, CACHED = 24, 10_000
"""vLLM's defaults for suffix lookup: tokens of a match, and responses that are searched."""

HISTORY = "OUTRIDER_SUFFIX_HISTORY"
"""Environment variable with the path of earlier responses, as `write_history` writes them."""

INSTALL = "pip install --no-deps arctic-inference==0.1.1"
"""Installs what vLLM needs for suffix lookup; compiles for a minute."""

NO_DRAFT = -1
"""Token id for no draft."""


class WeightlessKind(DrafterKind):
    """A kind whose drafts depend only on the request's tokens so far."""

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Drafts [A, K] after each token from `first` to the second-to-last."""
        raise NotImplementedError

    def vllm_settings(self, *given: Any, **named: Any) -> dict[str, Any] | None:
        """vLLM's settings without a model or draft sampling method."""
        unread = ("model", "draft_sample_method")
        settings = super().vllm_settings(*given, **named)
        return {key: value for key, value in (settings or {}).items() if key not in unread}


class NGramLookup(WeightlessKind):
    """Drafts the tokens after the first occurrence of the longest matching n-gram."""

    name = "ngram"
    in_words = "n-gram lookup"
    source_of_drafts = "what followed the same tokens earlier in the request"

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Runs vLLM's proposer on the tokens up to each anchor.

        The match does not depend on k. max_model_len has no effect, since logged tokens, and
        therefore all drafts that can be accepted, are within this limit.
        """
        from vllm.v1.spec_decode.ngram_proposer import (
            _find_longest_matched_ngram_and_propose_tokens,
        )

        anchors = range(first, len(token_ids_T) - 1)
        drafts_AK = np.full((len(anchors), k), NO_DRAFT, np.int32)
        for row_K, anchor in zip(drafts_AK, anchors, strict=True):
            found = _find_longest_matched_ngram_and_propose_tokens(
                token_ids_T[: anchor + 1], *LOOKUP.values(), len(token_ids_T) + k, k
            )
            row_K[: len(found)] = found
        return drafts_AK

    def vllm_settings(self, *given: Any, **named: Any) -> dict[str, Any]:
        """vLLM's settings, with the range of n-gram lengths."""
        return (super().vllm_settings(*given, **named) or {}) | LOOKUP


class SuffixLookup(WeightlessKind):
    """Drafts what most often followed the longest match in request and earlier responses."""

    name = "suffix"
    in_words = "suffix lookup"
    source_of_drafts = (
        "what most often followed the same tokens in the request and in the responses to earlier"
        f" requests, which vLLM keeps in memory. vLLM needs a package for it: `{INSTALL}`"
    )

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Asks vLLM's cache after every token.

        With fewer than k drafts, another match may have the best score, so for those the replay is
        an approximation.
        """
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_AK = np.full((anchors, k), NO_DRAFT, np.int32)
        for row_K, found in zip(drafts_AK, self.found(token_ids_T, first, k), strict=True):
            row_K[: len(found.token_ids)] = found.token_ids
        return drafts_AK

    def found(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> Iterator[Any]:
        """Yields the cache's answer at each anchor: `token_ids`, at most k, and their `score`."""
        cache = fixed_cache(os.environ.get(HISTORY))
        cache.start_request(self.name, token_ids_T[:first])
        for end in range(first + 1, len(token_ids_T)):
            cache.add_active_response(self.name, token_ids_T[end - 1 : end])
            recent_T = token_ids_T[max(end - DEPTH, 0) : end]
            yield cache.speculate(self.name, recent_T, max_spec_tokens=k)
        cache.stop_request(self.name)


def write_history(path: Path, responses: Sequence[Sequence[int]]) -> None:
    """Writes the newest responses for suffix lookup, for this user only."""
    newest = [np.array(ids, np.int32) for ids in responses[-CACHED:]]
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
            f"suffix lookup: vLLM needs arctic-inference for it; run `{INSTALL}` (it compiles for"
            " a minute)"
        ) from None

    class Fixed(SuffixDecodingCache):
        def stop_request(self, req_id: Any) -> None:
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


class NoSpeculation(WeightlessKind):
    """The target without a speculator."""

    name = "none"
    in_words = "no speculation"

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """`NO_DRAFT` everywhere."""
        return np.full((max(len(token_ids_T) - 1 - first, 0), k), NO_DRAFT, np.int32)

    def vllm_settings(self, *_: Any, **__: Any) -> None:
        """No settings: vLLM serves the target alone."""
