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
from typing import Any

from outrider.common.files import read_json
from outrider.speculators.checkpoints.checks import check_header_shape
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.kinds.dflash.kind import DFlash
from outrider.speculators.kinds.dspark.shape import (
    ARCHITECTURE,
    NAME_OF_SPECULATORS,
    plain_config,
    read_shape,
    speculators_config,
)


class DSpark(DFlash):
    """A DFlash head with a Markov head and a confidence head."""

    name = "dspark"
    in_words = "a DSpark head"
    directory_in_words: str | None = (
        f"a DSpark checkpoint (config.json of a {ARCHITECTURE}, and the weights of one layer)"
    )
    needs_v2 = True
    module = "outrider.speculators.kinds.dspark.layer:DSparkHead"
    shape = staticmethod(read_shape)
    new_config = staticmethod(plain_config)
    speculators_config = staticmethod(speculators_config)

    @staticmethod
    def recognizes(config: Mapping[str, Any]) -> bool:
        """True for the config.json of a DSpark head in Qwen3's format."""
        return config.get("speculators_model_type") == NAME_OF_SPECULATORS or ARCHITECTURE in (
            config.get("architectures") or []
        )

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Checks the DFlash head, and the Markov and confidence heads' shapes."""
        super().check(directory, target)
        path = Path(directory) / "config.json"
        shape = self.shape(read_json(path), target.config, path)
        found = tensor_headers(directory)
        rank = shape.markov_rank
        for name, wanted in (
            ("markov_head.markov_w1.weight", (shape.vocab, rank)),
            ("markov_head.markov_w2.weight", (shape.drafts, rank)),
            ("confidence_head.proj.weight", (1, shape.hidden + rank)),
            ("confidence_head.proj.bias", (1,)),
        ):
            check_header_shape(
                found=found, suffix=name, shape=wanted, config=path, in_words=self.in_words
            )
