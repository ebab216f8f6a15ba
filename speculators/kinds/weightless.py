"""Kinds without weights: n-gram lookup and no speculation.

They are served and measured for comparison; there is nothing to train or swap. Their drafts depend
only on the text, so replay needs no states.

    NGramLookup().drafts(token_ids_T, first=10, k=4)    # vLLM's own proposer at every anchor

Shapes: T tokens of a sequence, A anchors, K drafts.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import DrafterKind

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Range of n-gram lengths; vLLM's documentation uses a maximum of 4."""

NO_DRAFT = -1
"""Token id for no draft."""


class WeightlessKind(DrafterKind):
    """A kind whose drafts depend only on the request's tokens so far."""

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Drafts [A, K] after each token from `first` to the second-to-last."""
        raise NotImplementedError


class NGramLookup(WeightlessKind):
    """Drafts the tokens after the first occurrence of the longest matching n-gram."""

    name = "ngram"
    in_words = "n-gram lookup"

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
        """vLLM's settings without a model or draft sampling method."""
        unread, settings = ("model", "draft_sample_method"), super().vllm_settings(*given, **named)
        return {key: value for key, value in (settings or {}).items() if key not in unread} | LOOKUP


class NoSpeculation(WeightlessKind):
    """The target without a speculator."""

    name = "none"
    in_words = "no speculation"

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """`NO_DRAFT` everywhere."""
        return np.full((max(len(token_ids_T) - 1 - first, 0), k), NO_DRAFT, np.int32)

    def vllm_settings(self, *_: Any, **__: Any) -> None:
        """No settings: vLLM serves the target alone."""
