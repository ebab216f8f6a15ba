"""Target architectures: what Outrider reads of each, and why it refuses others. No torch.

    architecture = architecture_of(config, path)     # an OutriderError for other targets
    architecture.layer is not None                   # whether its own speculator can be trained

Supported are decoders that vLLM 0.32 serves and whose embedding, final RMSNorm and head are stored
under the names below. Where a target ships no layer that is trained, biases, norms of queries and
keys, grouped queries and scaled rotary embeddings are the engine's concern: states are captured in
vLLM. A new architecture is one entry in `ARCHITECTURES`, and where its own layer is trained, its
attention in layers/.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from outrider.common.errors import OutriderError

EMBEDDING, FINAL_NORM_WEIGHT, HEAD = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
)
"""The target's ends. Tied targets have no head."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """The decoder layer of targets that ship one as their speculator, as vLLM 0.32 computes it.

    Its MLP is DeepSeek-V3's in every architecture (layers/decoder_layer.py).
    """

    attention: str
    """Import path of the attention's class, which is made from config.json."""
    keys: tuple[str, ...]
    """Keys of config.json that give the attention its form."""
    rope_types: tuple[str, ...]
    """Rotary embeddings that the attention computes."""
    feeds_normed: bool
    """Whether the next depth is fed the state after the layer's last norm, or the one before."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What can be done with the targets of one architecture."""

    layer: Layer | None = None
    """None where no speculator in the checkpoint is trained."""
    returns_states: bool = True
    """Whether vLLM returns the states of its layers (`SupportsEagle3`), as heads read them."""


ARCHITECTURES = {
    "DeepseekV3ForCausalLM": Architecture(
        Layer(
            attention="outrider.speculators.layers.latent_attention:LatentAttention",
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
    # vLLM returns one state, residual + hidden (glm4_moe_mtp.py), which it norms for the head and
    # feeds as it is (llm_base_proposer.py, `model_returns_tuple`).
    "Glm4MoeForCausalLM": Architecture(
        Layer(
            attention="outrider.speculators.layers.llama_attention:Glm4MoeAttention",
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
"""By name in `architectures` of config.json."""

SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
"""Architectures with an indexer for sparse attention."""


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """The entry of the config.json at `path`; an `OutriderError` for an unsupported one."""
    name = str(next(iter(config.get("architectures") or []), None))
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    why = f"supported targets are {', '.join(ARCHITECTURES)}"
    if name in SPARSE:
        why = f"its sparse attention (the indexer) is neither captured nor trained here; {why}"
    raise OutriderError(f"{path}: architectures = {name}: not a target of Outrider; {why}")


def layer_of(config: Mapping[str, Any]) -> Layer:
    """The layer of a target that has one."""
    return cast(Layer, architecture_of(config, "config.json").layer)
