"""Target architectures: what Outrider reads of each, and why it refuses others. No torch.

    architecture = architecture_of(config, path)     # an OutriderError for other targets
    architecture.own_speculator                      # whether its MTP layer can be trained

Supported are decoders that vLLM 0.32 serves with EAGLE-3 (`SupportsEagle3`) and whose embedding,
final RMSNorm and head are stored under the names below. Biases, norms of queries and keys, grouped
queries and scaled rotary embeddings are the engine's concern: states are captured in vLLM.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError

EMBEDDING, FINAL_NORM_WEIGHT, HEAD = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
)
"""The target's ends. Tied targets have no head."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture of config.json."""

    own_speculator: bool = False
    """Its checkpoints can have an MTP layer that Outrider trains."""
    refused: str | None = None
    """Why such a target cannot be used; None where it can."""


SPARSE = (
    "its sparse attention (the indexer) is neither captured nor trained here; use DeepSeek-V3,"
    " V3.1 or R1, or another supported target"
)

ARCHITECTURES = {
    "DeepseekV3ForCausalLM": Architecture(own_speculator=True),
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(),
    "Qwen2ForCausalLM": Architecture(),
    "Qwen3ForCausalLM": Architecture(),
    "Qwen3MoeForCausalLM": Architecture(),
    "DeepseekV32ForCausalLM": Architecture(refused=SPARSE),
    "GlmMoeDsaForCausalLM": Architecture(refused=SPARSE),
}
"""By name in `architectures`."""


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """The architecture of the config.json at `path`; an `OutriderError` for an unsupported one."""
    name = next(iter(config.get("architectures") or []), None)
    found = ARCHITECTURES.get(str(name))
    if found is not None and found.refused is None:
        return found
    supported = [known for known, each in ARCHITECTURES.items() if each.refused is None]
    why = found.refused if found else f"supported targets are {', '.join(supported)}"
    raise OutriderError(f"{path}: architectures = {name}: not a target of Outrider; {why}")
