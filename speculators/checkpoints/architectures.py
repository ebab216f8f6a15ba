"""Supported target architectures, and reasons to refuse others. Does not import torch.

    architecture = architecture_of(config, path)     # raises for other targets
    architecture.layer is not None                   # whether its own speculator can be trained

A decoder is supported if vLLM 0.32 serves it and its embedding, final RMSNorm and head are stored
under the names below. Biases, query and key norms, grouped queries and scaled rotary embeddings
matter only if the target's own layer is trained, since vLLM computes the rest. A new architecture
takes one entry in `ARCHITECTURES`, one in `EXAMPLES` and `CLASSES` (refusals.py) and, if its own
layer is trained, its attention in layers/ and in `ATTENTIONS` (layers/decoder_layer.py).
"""

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.refusals import refusal

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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

OF_EVERY_TARGET = (
    "model_type",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
"""Keys of config.json that every plan reads."""

OF_MLA = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Further keys of a target with MLA, whose config.json has `kv_lora_rank`."""


NOT_NULL = (
    "first_k_dense_replace", "kv_lora_rank", "max_position_embeddings", "moe_intermediate_size",
    "n_routed_experts", "n_shared_experts", "num_experts", "num_experts_per_tok",
    "partial_rotary_factor", "rope_theta",
)  # fmt: skip
"""Keys that may be left out, but are computed with if they are there."""


def is_supported(config: Mapping[str, Any]) -> bool:
    """Whether speculators are trained for such targets."""
    return next(iter(config.get("architectures") or []), None) in ARCHITECTURES


def verifier_of(config: Mapping[str, Any]) -> str | None:
    """The target that a head in the speculators format names; None for any other config."""
    section = config.get("speculators_config") or {}
    return (section.get("verifier") or {}).get("name_or_path")


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """The config's architecture; raises an `OutriderError` if it is unsupported."""
    name = str(next(iter(config.get("architectures") or []), None))
    if is_supported(config):
        return ARCHITECTURES[name]
    if not config.get("architectures"):
        raise OutriderError(
            f"{path}: no architectures, so the target is unknown; copy the model's original"
            " config.json"
        )
    verifier = verifier_of(config)
    if verifier:
        why = f"it is a speculator; set target.model to its target, {verifier}, and speculator.base"
        why += " to its directory"
    else:
        why = refusal(config, name)
    raise OutriderError(f"{path}: architectures = {name}: not a supported target: {why}")


def check_keys(
    config: Mapping[str, Any], path: object, reader: str, keys: Iterable[str] = ()
) -> None:
    """Checks that the config has the keys of every target, and `keys`, which `reader` needs."""
    latent = OF_MLA if config.get("kv_lora_rank") else ()
    needed = (*OF_EVERY_TARGET, *latent, *keys)
    missing = [key for key in needed if config.get(key) is None]
    missing += [key for key in NOT_NULL if key in config and config[key] is None]
    if missing:
        raise OutriderError(
            f"{path}: no {', '.join(missing)}, which {reader} needs; copy"
            f" {'it' if len(missing) == 1 else 'them'} from the model's original config.json, or"
            " point target.model at a complete checkpoint"
        )


REFUSALS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError, ArithmeticError)
"""What transformers raises for values of config.json that it does not check."""


def transformers_model(config: Mapping[str, Any]) -> "tuple[type, PretrainedConfig]":
    """The model class of transformers and its configuration, without quantization.

    Chosen by architecture instead of model_type: Kimi-K2 is a DeepseekV3ForCausalLM of model_type
    kimi_k2, which vLLM reads as DeepSeek-V3's too (transformers_utils/config.py).
    """
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    model_class = getattr(transformers, config["architectures"][0])
    settings = copy.deepcopy(dict(config))  # transformers modifies its arguments
    for key in ("model_type", "quantization_config", "auto_map"):
        settings.pop(key, None)
    try:
        return model_class, model_class.config_class(**settings)
    except (*REFUSALS, StrictDataclassError) as error:
        raise refused_by_transformers(error) from None


def refused_by_transformers(error: Exception) -> OutriderError:
    """The error for a config.json from which transformers makes no model."""
    why = " ".join(f"{error or type(error).__name__}".split())[:300]  # may quote whole values
    return OutriderError(
        f"the target's config.json: transformers refuses it ({why}); compare it with the model's"
        " original config.json"
    )


def layer_of(config: Mapping[str, Any]) -> Layer:
    """The speculator layer of a target that is known to have one."""
    return cast(Layer, architecture_of(config, "config.json").layer)
