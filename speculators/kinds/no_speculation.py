"""No speculation: the target alone, as a base to compare a speculator with.

NoSpeculation().vllm_settings(None, 0, "greedy", None)    # None
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import NO_DRAFT, KPerBatchSize, Lookup, WeightlessKind


class NoSpeculation(WeightlessKind):
    """The target without a speculator."""

    name = "none"
    in_words = "no speculation"
    speculates = False

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        """`NO_DRAFT` everywhere."""
        anchors = max(len(token_ids_T) - 1 - first, 0)
        return np.full((len(numbers), anchors, max(numbers)), NO_DRAFT, np.int32)

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> None:
        """No settings: vLLM serves the target alone."""
