"""config.json of a target or a head, with the types of the keys that are read.

    config = read_config(directory / "config.json")         # of any model
    config = read_head_config(directory / "config.json")    # of a head of a known kind

People copy and edit these files. A value of another type is refused here, once, because every
reader computes with it. Other keys, and all keys of sizes of unsupported models, are not checked:
Gemma 3n has a list of intermediate sizes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.errors import OutriderError
from outrider.common.json_forms import read_object
from outrider.speculators.checkpoints.architectures import is_supported

FIX = "copy this key from the model's original config.json"

Size = Annotated[int, Field(ge=1, lt=2**31)]
"""A number of layers, heads, values or tokens, which engines hold in 32 bits."""

Layers = Annotated[int, Field(ge=1, le=2048)]
"""A plan makes every layer, in no memory; published models have up to 200."""

Index = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, lt=1e30)]
Section = dict[str, Any]


class _Names(BaseModel):
    """Keys that tell which model it is, with the types that they have in every model."""

    architectures: list[str] | None = None
    type_of_model: Annotated[str | None, Field(alias="model_type")] = None
    layer_types: list[str] | None = None
    quantization_config: Section | None = None
    compression_config: Section | None = None
    text_config: "_Names | None" = None
    llm_config: "_Names | None" = None
    language_config: "_Names | None" = None
    thinker_config: "_Names | None" = None
    mtp_config: Section | None = None
    speculators_config: "_OfSpeculators | None" = None
    speculators_model_type: str | None = None


class _Verifier(BaseModel):
    name_or_path: str | None = None


class _OfSpeculators(BaseModel):
    verifier: _Verifier | None = None
    proposal_methods: list[Section] | None = None


class _Rope(BaseModel):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Size | None = None
    partial_rotary_factor: Positive | None = None


class _Sizes(_Names):
    """Keys that are computed with. A null passes: `check_keys` names the missing ones."""

    model_config = ConfigDict(allow_inf_nan=False)

    attention_bias: bool | None = None
    first_k_dense_replace: Index | None = None
    head_dim: Size | None = None
    hidden_act: str | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    kv_lora_rank: Index | None = None
    max_position_embeddings: Size | None = None
    moe_intermediate_size: Size | None = None
    n_group: Size | None = None
    n_routed_experts: Index | None = None
    n_shared_experts: Index | None = None
    norm_topk_prob: bool | None = None
    num_attention_heads: Size | None = None
    num_experts: Index | None = None
    num_experts_per_tok: Index | None = None
    num_hidden_layers: Layers | None = None
    num_key_value_heads: Size | None = None
    num_nextn_predict_layers: Index | None = None
    partial_rotary_factor: Positive | None = None
    q_lora_rank: Index | None = None
    qk_nope_head_dim: Size | None = None
    qk_rope_head_dim: Size | None = None
    rms_norm_eps: Positive | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    rope_theta: Positive | None = None
    routed_scaling_factor: Positive | None = None
    tie_word_embeddings: bool | None = None
    topk_group: Size | None = None
    use_qk_norm: bool | None = None
    v_head_dim: Size | None = None
    vocab_size: Size | None = None


def read_config(path: Path) -> dict[str, Any]:
    """Reads a config.json; raises an `OutriderError` with a key whose value has another type."""
    config: dict[str, Any] = read_object(_Names, path, FIX)
    return read_object(_Sizes, path, FIX) if is_supported(config) else config


LayerIds = list[Annotated[int, Field(ge=-1, lt=2**31)]]
"""Layers of the target; some formats count from the embedding, which is then -1 or 0."""


class _Eagle(BaseModel):
    layer_ids: LayerIds | None = None
    eagle_aux_hidden_state_layer_ids: LayerIds | None = None


class _DFlash(BaseModel):
    block_size: Size | None = None
    mask_token_id: int | None = None
    target_layer_ids: LayerIds | None = None


class _Head(_Sizes):
    """A head's own keys, at the top level or in the section of its layer."""

    aux_hidden_state_layer_ids: LayerIds | None = None
    block_size: Size | None = None
    dflash_config: _DFlash | None = None
    draft_vocab_size: Size | None = None
    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    eagle_config: _Eagle | None = None
    markov_rank: Size | None = None
    mask_token_id: int | None = None
    original_max_position_embeddings: Size | None = None
    pard_token: int | None = None
    ptd_token_id: int | None = None
    target_hidden_size: Size | None = None
    target_layer_ids: LayerIds | None = None
    torch_dtype: str | None = None
    transformer_layer_config: _Sizes | None = None


OF_EVERY_HEAD = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "rms_norm_eps",
    "vocab_size",
)
"""Keys of a head's layer, which may be in `transformer_layer_config`."""


def read_head_config(path: Path) -> dict[str, Any]:
    """Reads a head's config.json, of any architecture; raises as `read_config` does."""
    config: dict[str, Any] = read_object(_Head, path, FIX)
    return config


def check_head_keys(layer: Mapping[str, Any], path: object) -> None:
    """Raises an `OutriderError` if a head's layer lacks a key of `OF_EVERY_HEAD`."""
    missing = [key for key in OF_EVERY_HEAD if layer.get(key) is None]
    if missing:
        raise OutriderError(
            f"{path}: no {', '.join(missing)}; copy {'it' if len(missing) == 1 else 'them'} from"
            " the config.json that the head was published with"
        )


class _Generation(BaseModel):
    """Keys of generation_config.json that the engine's sampling depends on."""

    model_config = ConfigDict(allow_inf_nan=False)

    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


def read_generation(path: Path) -> dict[str, Any]:
    """Reads a generation_config.json; raises as `read_config` does."""
    generation: dict[str, Any] = read_object(_Generation, path, FIX)
    return generation
