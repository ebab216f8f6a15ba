"""Reads and writes the config.json of DFlash heads. No torch.

    shape = read_shape(config, target_config, path)          # either published layout
    plain_config(target_config, HeadConfig(), drafts=256)    # for a new head

There are two published layouts: the plain one, a Qwen3 configuration with a `dflash_config`
section, and that of vllm-project/speculators. In the plain one, `target_layer_ids` refer to layer
outputs: 1 is the state after layer 1, the residual stream before layer 2. Missing keys take the
defaults of vLLM 0.32 (qwen3_dflash.py, configs/speculators/algos.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.shape import (
    LAYER,
    LAYER_OF_SPECULATORS,
    EagleShape,
    check_layers,
    checkpoint_names,
    chosen_layers,
    layer_config,
    llama_widths,
    of_speculators,
    one_layer_config,
    spare_token,
)
from outrider.speculators.layers.rope import rope_of

ARCHITECTURE = "DFlashDraftModel"
NAME_OF_SPECULATORS = "dflash"
"""`speculators_model_type` of a DFlash head."""

SECTION = "dflash_config"
LAYER_IDS = "target_layer_ids"
LAYER_IDS_OF_SPECULATORS = "aux_hidden_state_layer_ids"
MASK_TOKEN = "mask_token_id"
DEFAULT_THETA = 1_000_000.0
"""Base of the rotary embedding if config.json has none."""


def is_dflash(config: Mapping[str, Any]) -> bool:
    """True for a DFlash head's config.json, with any number of layers."""
    return (
        config.get("speculators_model_type") == NAME_OF_SPECULATORS
        or ARCHITECTURE in (config.get("architectures") or [])
        or SECTION in config
    )


def read_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> EagleShape:
    """Reads the config.json at `path`; raises an `OutriderError` for unsupported heads."""
    layer = layer_config(config)
    section = config.get(SECTION) or {}
    of_speculators = "speculators_model_type" in config
    _check_supported(layer, section, config, path)
    if of_speculators:
        key = LAYER_IDS_OF_SPECULATORS
        layers = config.get(LAYER_IDS_OF_SPECULATORS) or []
    else:
        key = f"{LAYER_IDS} + 1"
        layers = [index + 1 for index in section.get(LAYER_IDS, config.get(LAYER_IDS)) or ()]
    mask = section.get(MASK_TOKEN, config.get(MASK_TOKEN))
    check_layers(layers, target_config["num_hidden_layers"], f"{path}: {key}")
    if mask is None or not 0 <= mask < layer["vocab_size"]:
        raise OutriderError(
            f"{path}: {MASK_TOKEN} = {mask}: not a token of the target's vocabulary of"
            f" {layer['vocab_size']}; the head was made for another target"
        )
    hidden = layer["hidden_size"]
    heads = layer["num_attention_heads"]
    return EagleShape(
        vocab=layer["vocab_size"],
        drafts=config.get("draft_vocab_size") or layer["vocab_size"],
        target_hidden=config.get("target_hidden_size") or hidden,
        hidden=hidden,
        layers=tuple(layers),
        intermediate=layer["intermediate_size"],
        norm_eps=layer["rms_norm_eps"],
        heads=heads,
        kv_heads=layer.get("num_key_value_heads") or heads,
        head_dim=layer.get("head_dim") or hidden // heads,
        theta=rope_of(layer, DEFAULT_THETA)["rope_theta"],
        latent=None,
        mask_token=mask,
    )


def plain_config(target_config: Mapping[str, Any], head: HeadConfig, drafts: int) -> dict[str, Any]:
    """config.json of a new head, in the plain layout."""
    layers = chosen_layers(target_config, head)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        **llama_widths(target_config["hidden_size"]),
        **one_layer_config(target_config, head, drafts),
        "layer_types": ["full_attention"],
        SECTION: {
            MASK_TOKEN: spare_token(target_config),
            LAYER_IDS: [index - 1 for index in layers],
            "causal": False,
        },
    }


def speculators_config(
    config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any]:
    """config.json in the format of vllm-project/speculators.

    The layer's settings are in `transformer_layer_config`; the mask token and the target's layers,
    numbered as in EAGLE-3, are at the top level. `sliding_window_non_causal` is true because
    vLLM 0.32 takes false to mean a causal block, even with full attention.
    """
    shape = read_shape(config, target_config, "config.json")
    of_the_head = ("architectures", "draft_vocab_size", SECTION, "torch_dtype")
    return {
        **of_speculators(
            algorithm=NAME_OF_SPECULATORS,
            architecture=ARCHITECTURE,
            target_config=target_config,
            target=target,
            drafts=drafts,
        ),
        "torch_dtype": config.get("torch_dtype", "bfloat16"),
        "draft_vocab_size": shape.drafts,
        "block_size": drafts + 1,
        LAYER_IDS_OF_SPECULATORS: list(shape.layers),
        MASK_TOKEN: shape.mask_token,
        "sliding_window_non_causal": True,
        "transformer_layer_config": {
            key: value for key, value in config.items() if key not in of_the_head
        },
    }


def tensor_names(stored: Iterable[str]) -> dict[str, str]:
    """Maps tensor names in the module to stored names."""
    names = {}
    for name, stored_name in checkpoint_names(stored).items():
        if name.startswith(LAYER):
            name = LAYER_OF_SPECULATORS + name.removeprefix(LAYER)
        names[name] = stored_name
    return names


def _check_supported(
    layer: Mapping[str, Any], section: Mapping[str, Any], config: Mapping[str, Any], path: object
) -> None:
    count = layer.get("num_hidden_layers", 1)
    if count != 1:
        raise OutriderError(
            f"{path}: num_hidden_layers = {count}: Outrider serves, trains and replays only heads"
            " with one layer, since vLLM 0.32 on a CPU silently norms the keys of all layers with"
            " the first layer's weight; train a head with one layer (speculator.base: none)"
        )
    causal = section.get("causal", config.get("is_causal"))
    if "speculators_model_type" in config:
        # vLLM takes `false` to mean a causal block.
        causal = not config.get("sliding_window_non_causal", True)
    wrong = {
        "causal": bool(causal),
        "layer_types": "sliding_attention" in (layer.get("layer_types") or ()),
        "use_swa": section.get("use_swa"),
        "attention_sink_bias": section.get(
            "attention_sink_bias", layer.get("add_swa_attention_sink_bias")
        ),
        "attention_value_scale": section.get("attention_value_scale"),
        "use_aux_hidden_state": {**config, **section}.get("use_aux_hidden_state") is False,
        "sample_from_anchor": section.get("sample_from_anchor"),
        "attention_bias": layer.get("attention_bias"),
        "is_neox_style": layer.get("is_neox_style", True) is False,
        "hidden_act": layer.get("hidden_act", "silu") != "silu",
        "logit_scale": config.get("logit_scale", 1.0) != 1.0,
        "rope_type": rope_of(layer)["rope_type"] != "default",
    }
    for key, differs in wrong.items():
        if differs:
            raise OutriderError(
                f"{path}: {key}: Outrider neither trains nor replays such a head. It trains and"
                " replays heads with full, non-causal attention, SiLU, no biases"
                " and a plain rotary embedding; train one from scratch (speculator.base: none)"
            )
