"""DFlash heads: a block of mask slots that attends to target states.

    kind = DFlash()
    kind.vllm_settings(directory, 5, "greedy", None)     # method dflash

Like a P-EAGLE head, a DFlash head drafts all K tokens in one pass and reads no drafts. Its context
consists only of keys and values projected from fc(auxiliary states), without token embeddings or
queries. The block is not causal: every slot attends to the context and to all K + 1 slots, so the
drafts depend on K, and a step with fewer slots would draft different tokens.

A head that is trained has one layer and is stored like an EAGLE-3 head, with other tensor names and
another config.json. Heads of several layers are served on GPUs, and counted. Other files:
dflash/shape.py (config.json), dflash/layer.py (the module).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.checks import check_header_shape
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.model_config import read_head_config
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.dflash.shape import (
    cpu_refusal,
    dflash_speculators_config,
    is_dflash,
    max_dflash_drafts,
    plain_dflash_config,
    read_dflash_shape,
    served_dflash_shape,
    tensor_names,
)
from outrider.speculators.kinds.eagle3.check import check_head
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.loadable import layer_refusals
from outrider.speculators.kinds.eagle3.shape import EagleShape

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.speculators.kinds.eagle3.layer import StoredHead

MASK_EMBEDDING = "mask_embedding"
"""vLLM's name for the mask token's embedding; unused without mask_embedding.pt."""


class DFlash(Eagle3):
    """A head that drafts a block of tokens from the target's states."""

    name = "dflash"
    in_words = "a DFlash head"
    first_release = "0.22.0"
    directory_in_words: str | None = (
        "a DFlash checkpoint (config.json of a DFlashDraftModel, and its weights)"
    )
    fixed_k = True
    one_block = True
    head_keys: frozenset[str] = frozenset(("layers", "draft_vocabulary", "rope_theta"))

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for a DFlash head's config.json, with any number of layers."""
        return is_dflash(config)

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """Reads the shape of the head whose config.json is at `path`."""
        return read_dflash_shape(config, target_config, path)

    def served_shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """The shape of a head that may have several layers or a window."""
        return served_dflash_shape(config, target_config, path)

    def served_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> Mapping[str, Any]:
        """config.json as it is: all engines read the layers from the same key."""
        return config

    def cpu_refusal(self, config: Mapping[str, Any]) -> str | None:
        """Refuses heads of several layers."""
        return cpu_refusal(config)

    def max_drafts(self, config: Mapping[str, Any]) -> int | None:
        """Slots of the head's block that draft."""
        return max_dflash_drafts(config)

    def new_module(self, shape: EagleShape, target_ids_D: "Tensor | None") -> "StoredHead":
        """The module, without initial weights."""
        from outrider.speculators.kinds.dflash.layer import DFlashHead

        return DFlashHead(shape, target_ids_D)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json of a new head, in the plain layout."""
        return plain_dflash_config(target_config, head, drafts)

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """Maps tensor names in the module to stored names."""
        return tensor_names(stored)

    def speculators_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
    ) -> dict[str, Any] | None:
        """config.json in the format of vllm-project/speculators."""
        return dflash_speculators_config(config, target_config, target, drafts)

    def load_refusals(self, directory: Path) -> list[str]:
        """Refuses weights of other layers than config.json's."""
        return layer_refusals(directory, read_head_config(directory / "config.json"))

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Checks vocabulary, widths, target layers, shapes and finiteness."""
        self.check_loadable(directory)
        path = Path(directory) / "config.json"
        shape = self.served_shape(read_head_config(path), target.config, path)
        if (Path(directory) / f"{MASK_EMBEDDING}.pt").exists():
            raise OutriderError(
                f"{Path(directory) / MASK_EMBEDDING}.pt: a separate embedding of the mask token,"
                " but Outrider reads only the target's embedding; use a head without one"
            )
        headers = tensor_headers(directory)
        for name, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
            check_header_shape(
                headers=headers,
                suffix=f"self_attn.{name}.weight",
                shape=(heads * shape.head_dim, shape.hidden),
                config=path,
                in_words=self.in_words,
            )
        check_head(directory, target, self.in_words, len(shape.layers))

    def stays_with_target(self, name: str) -> bool:
        """True for the embedding and the mask token's separate embedding."""
        return super().stays_with_target(name) or name.endswith(MASK_EMBEDDING)
