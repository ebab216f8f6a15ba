"""A kind: an EAGLE-3 head whose head rows stay the target's.

It has fewer trained parameters than EAGLE-3's head, by draft tokens times hidden size: does a head
need rows of its own? vLLM serves it as what its files are, an EAGLE-3 head.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.protocol import KPerBatchSize

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.speculators.kinds.eagle3.layer import StoredHead

MARK = "frozen_rows"
"""Key of config.json by which the kind is recognized; vLLM ignores it."""


class FrozenRows(Eagle3):
    """An EAGLE-3 head with the target's head rows."""

    name = "frozen_rows"
    in_words = "an EAGLE-3 head with frozen rows"
    directory_in_words: str | None = "an EAGLE-3 checkpoint with frozen_rows in its config.json"

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for a config.json with the mark."""
        return bool(config.get(MARK)) and super().recognizes(config)

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `eagle3`."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size)
        return (settings or {}) | {"method": Eagle3.name}

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """An EAGLE-3 head's config.json with the mark."""
        return super().new_config(target_config, head, drafts) | {MARK: True}

    def new_module(self, shape: EagleShape, target_ids_D: "Tensor | None") -> "StoredHead":
        """EAGLE-3's module; its rows, which start as the target's, are not trained."""
        head = super().new_module(shape, target_ids_D)
        head.lm_head.weight.requires_grad_(False)
        return head
