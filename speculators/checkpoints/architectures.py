"""Supported target architectures, and reasons to refuse others. Does not import torch.

    architecture = architecture_of(config, path)     # raises for other targets
    architecture.layer is not None                   # whether its own speculator can be trained

A decoder is supported if vLLM 0.32 serves it and its embedding, final RMSNorm and head are stored
under the names below. Biases, query and key norms, grouped queries and scaled rotary embeddings
matter only if the target's own layer is trained, since vLLM computes the rest. A new architecture
takes one entry in `ARCHITECTURES` and, if its own layer is trained, its attention in layers/ and in
`ATTENTIONS` (layers/decoder_layer.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, cast

from outrider.common.errors import OutriderError

EMBEDDING, FINAL_NORM_WEIGHT, HEAD = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
)
"""The target's embedding, last norm and head (absent if weights are tied)."""

AttentionName = Literal["latent", "glm4_moe"]
"""DeepSeek's latent attention (MLA), or GLM-4.5's grouped-query attention."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A decoder layer that a target ships as its speculator.

    Computed as in vLLM 0.32. The MLP is always DeepSeek-V3's (layers/decoder_layer.py).
    """

    attention: AttentionName
    """Attention of the layer; layers/decoder_layer.py has its class."""
    keys: tuple[str, ...]
    """Keys of config.json that define the attention."""
    rope_types: tuple[str, ...]
    """Rotary embeddings that the attention supports."""
    feeds_normed: bool
    """True if the next depth reads the state after the last norm."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Capabilities of one target architecture."""

    layer: Layer | None = None
    """The target's own speculator; None if Outrider cannot train one."""
    returns_states: bool = True
    """Whether vLLM returns layer states (`SupportsEagle3`), which heads read."""


ARCHITECTURES = {
    "DeepseekV3ForCausalLM": Architecture(
        Layer(
            attention="latent",
            keys=(
                "q_lora_rank",
                "kv_lora_rank",
                "qk_nope_head_dim",
                "qk_rope_head_dim",
                "v_head_dim",
            ),
            rope_types=("default", "yarn"),
            feeds_normed=True,
        )
    ),
    # vLLM returns one state, residual + hidden (glm4_moe_mtp.py). It is normed for the head, but
    # the next depth reads it before the norm (llm_base_proposer.py, `model_returns_tuple`).
    "Glm4MoeForCausalLM": Architecture(
        Layer(
            attention="glm4_moe",
            keys=("num_key_value_heads", "head_dim", "attention_bias", "use_qk_norm"),
            rope_types=("default",),
            feeds_normed=False,
        ),
        returns_states=False,
    ),
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(),
    "Qwen2ForCausalLM": Architecture(),
    "Qwen3ForCausalLM": Architecture(),
    "Qwen3MoeForCausalLM": Architecture(),
}
"""Architectures by their name in config.json."""

SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
"""Architectures with an indexer for sparse attention."""


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """The config's architecture; raises an `OutriderError` if it is unsupported."""
    name = str(next(iter(config.get("architectures") or []), None))
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    why = f"supported targets are {', '.join(ARCHITECTURES)}"
    if name in SPARSE:
        why = f"its sparse attention (the indexer) is neither captured nor trained here; {why}"
    raise OutriderError(f"{path}: architectures = {name}: not a supported target; {why}")


def layer_of(config: Mapping[str, Any]) -> Layer:
    """The speculator layer of a target that is known to have one."""
    return cast(Layer, architecture_of(config, "config.json").layer)
