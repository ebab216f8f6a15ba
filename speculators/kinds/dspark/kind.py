"""DSpark heads: DFlash's block with a Markov head and a confidence head.

    kind = DSpark()
    kind.vllm_settings(directory, 5, "greedy", None)     # method dspark

As in DFlash, the block is computed in one pass. Its drafts are then chosen one by one: the Markov
head adds to each draft's logits a low-rank bias that depends on the preceding token, so consecutive
drafts fit together at little cost. The confidence head estimates the probability that a draft is
accepted if all drafts before it are. vLLM 0.32 uses it only with `enable_adaptive_verification`, to
verify fewer drafts for some requests, never to draft fewer.

Only vLLM's model runner V2 supports the kind. Other files: dspark/shape.py (config.json),
dspark/layer.py (the module).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.speculators.checkpoints.checks import check_header_shape
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.model_config import read_head_config
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.dflash.kind import DFlash
from outrider.speculators.kinds.dspark.shape import (
    ARCHITECTURE,
    dspark_speculators_config,
    is_dspark,
    max_dspark_drafts,
    nested_refusals,
    plain_dspark_config,
    read_dspark_shape,
    served_dspark_shape,
)
from outrider.speculators.kinds.eagle3.shape import EagleShape

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.speculators.kinds.eagle3.layer import StoredHead


class DSpark(DFlash):
    """A DFlash head with a Markov head and a confidence head."""

    name = "dspark"
    in_words = "a DSpark head"
    first_release = "0.26.0"
    directory_in_words: str | None = (
        f"a DSpark checkpoint (config.json of a {ARCHITECTURE}, and its weights)"
    )
    only_runner = "v2"

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """Reads the shape of the head whose config.json is at `path`."""
        return read_dspark_shape(config, target_config, path)

    def served_shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """The shape of a head that may have several layers or a window."""
        return served_dspark_shape(config, target_config, path)

    def max_drafts(self, config: Mapping[str, Any]) -> int | None:
        """Slots of the head's block that draft."""
        return max_dspark_drafts(config)

    def new_module(self, shape: EagleShape, target_ids_D: "Tensor | None") -> "StoredHead":
        """The module, without initial weights."""
        from outrider.speculators.kinds.dspark.layer import DSparkHead

        return DSparkHead(shape, target_ids_D)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json of a new head, in DeepSeek's layout."""
        return plain_dspark_config(target_config, head, drafts)

    def speculators_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
    ) -> dict[str, Any] | None:
        """config.json in the format of vllm-project/speculators."""
        return dspark_speculators_config(config, target_config, target, drafts)

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for the config.json of a DSpark head in Qwen3's format."""
        return is_dspark(config)

    def load_refusals(self, directory: Path) -> list[str]:
        """Refuses what DFlash does, and keys where vLLM does not look."""
        config = read_head_config(directory / "config.json")
        return [*nested_refusals(config), *super().load_refusals(directory)]

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Checks the DFlash head, and the Markov and confidence heads' shapes."""
        super().check(directory, target)
        path = Path(directory) / "config.json"
        shape = self.served_shape(read_head_config(path), target.config, path)
        headers = tensor_headers(directory)
        rank = shape.markov_rank
        for name, stored_shape in (
            ("markov_head.markov_w1.weight", (shape.vocab, rank)),
            ("markov_head.markov_w2.weight", (shape.drafts, rank)),
            ("confidence_head.proj.weight", (1, shape.hidden + rank)),
            ("confidence_head.proj.bias", (1,)),
        ):
            check_header_shape(
                headers=headers,
                suffix=name,
                shape=stored_shape,
                config=path,
                in_words=self.in_words,
            )
