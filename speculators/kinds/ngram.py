"""N-gram lookup: drafts what followed the same tokens earlier in the request.

    NGramLookup().drafts(token_ids_T, first=10, k=4)    # vLLM's own proposer at every anchor

Shapes: T tokens of a sequence, A anchors, K drafts.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import NO_DRAFT, KPerBatchSize, WeightlessKind

NGRAM_LENGTHS = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Range of n-gram lengths; vLLM's documentation uses a maximum of 4."""


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
            # vLLM's compiled function, called for one request as in
            # v1/spec_decode/ngram_proposer.py:196.
            proposed = _find_longest_matched_ngram_and_propose_tokens(
                token_ids_T[: anchor + 1], *NGRAM_LENGTHS.values(), len(token_ids_T) + k, k
            )
            row_K[: len(proposed)] = proposed
        return drafts_AK

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's settings, with the range of n-gram lengths."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size)
        return (settings or {}) | NGRAM_LENGTHS
