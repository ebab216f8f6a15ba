"""Target architectures: what Outrider reads of each, and why it refuses others. No torch.

    name = architecture_of(config, path)     # an OutriderError for other targets
    name in WITH_OWN_SPECULATOR              # whether its MTP layer can be trained

Supported are decoders that vLLM 0.32 serves with EAGLE-3 (`SupportsEagle3`) and whose embedding,
final RMSNorm and head are stored under the names below. Biases, norms of queries and keys, grouped
queries and scaled rotary embeddings are the engine's concern: states are captured in vLLM.
"""

from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError

EMBEDDING, FINAL_NORM_WEIGHT, HEAD = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
)
"""The target's ends. Tied targets have no head."""


WITH_OWN_SPECULATOR = ("DeepseekV3ForCausalLM",)
"""Architectures whose checkpoints can have an MTP layer that Outrider trains."""

SUPPORTED = (
    *WITH_OWN_SPECULATOR,
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""Names in `architectures` of the targets that can be used."""

SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
"""Architectures with an indexer for sparse attention."""


def architecture_of(config: Mapping[str, Any], path: object) -> str:
    """The architecture of the config.json at `path`; an `OutriderError` for an unsupported one."""
    name = str(next(iter(config.get("architectures") or []), None))
    if name in SUPPORTED:
        return name
    why = f"supported targets are {', '.join(SUPPORTED)}"
    if name in SPARSE:
        why = f"its sparse attention (the indexer) is neither captured nor trained here; {why}"
    raise OutriderError(f"{path}: architectures = {name}: not a target of Outrider; {why}")
