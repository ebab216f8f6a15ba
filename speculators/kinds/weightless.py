"""Kinds without weights: n-gram lookup in the request's own text, and no speculation.

They are served and counted for comparison. There is nothing to train, replay or swap.
"""

from pathlib import Path
from typing import Any

from outrider.speculators.kinds.protocol import DrafterKind, KPerBatchSize

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Lengths of the n-grams looked up; 4 is the longest in vLLM's documentation of the method."""


class NGramLookup(DrafterKind):
    """Drafts what followed the last n-gram when it occurred earlier in the request."""

    name = "ngram"
    in_words = "n-gram lookup"

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """The lookup has neither weights nor probabilities, and one number of drafts."""
        return {"method": self.name, "num_speculative_tokens": k, **LOOKUP}


class NoSpeculation(DrafterKind):
    """The target alone."""

    name = "none"
    in_words = "no speculation"

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """No settings: vLLM serves the target alone."""
        return None
