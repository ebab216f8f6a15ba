"""Reads and writes the config.json of DFlash heads. No torch.

    shape = read_dflash_shape(config, target_config, path)          # either published layout
    plain_dflash_config(target_config, HeadConfig(), drafts=256)    # for a new head

There are two published layouts: the plain one, a Qwen3 configuration with a `dflash_config`
section, and that of vllm-project/speculators. In the plain one, `target_layer_ids` refer to layer
outputs: 1 is the state after layer 1, the residual stream before layer 2. Missing keys take the
defaults of vLLM 0.32 (qwen3_dflash.py, configs/speculators/algos.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.model_config import check_head_keys
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.shape import (
    LAYER,
    LAYER_OF_SPECULATORS,
    EagleShape,
    check_layers,
    chosen_layers,
    chosen_theta,
    eagle_checkpoint_names,
    layer_config,
    llama_widths,
    of_speculators,
    one_layer_config,
    spare_token,
    unsupported_head,
)
from outrider.speculators.kinds.eagle3.shape import (
    LAYER_IDS as TOP_LEVEL_IDS,
)
from outrider.speculators.layers.rope import head_rope, refused_rope

ARCHITECTURE = "DFlashDraftModel"
NAME_OF_SPECULATORS = "dflash"
"""`speculators_model_type` of a DFlash head."""

SECTION = "dflash_config"
LAYER_IDS = "target_layer_ids"
LAYER_IDS_OF_SPECULATORS = "aux_hidden_state_layer_ids"
MASK_TOKEN = "mask_token_id"
FROM_ANCHOR = "sample_from_anchor"
DEFAULT_THETA = 1_000_000.0
"""Base of the rotary embedding if config.json has none."""


def is_dflash(config: Mapping[str, Any]) -> bool:
    """True for a DFlash head's config.json, with any number of layers.

    Other drafters have the section too: DSparkDraftModel is DeepSeek-V4's own, and vLLM 0.32 has no
    DominoDraftModel.
    """
    architectures = config.get("architectures") or []
    return (
        config.get("speculators_model_type") == NAME_OF_SPECULATORS
        or ARCHITECTURE in architectures
        or (SECTION in config and not architectures)
    )


def read_dflash_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> EagleShape:
    """Reads the config.json at `path`; raises an `OutriderError` if the head is not unrolled."""
    _check_unrolled(config, path)
    return served_dflash_shape(config, target_config, path)


def served_dflash_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> EagleShape:
    """The shape of a head that the engine serves; `_check_unrolled` has what is not unrolled."""
    layer = layer_config(config)
    check_head_keys(layer, path)
    section = config.get(SECTION) or {}
    _check_served(layer, section, config, path)
    layers = dflash_layers(config, path)
    mask = section.get(MASK_TOKEN, config.get(MASK_TOKEN))
    key = LAYER_IDS_OF_SPECULATORS if "speculators_model_type" in config else f"{LAYER_IDS} + 1"
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
        rope=head_rope(layer, DEFAULT_THETA),
        latent=None,
        mask_token=mask,
    )


def dflash_layers(config: Mapping[str, Any], path: object) -> list[int]:
    """The target's layers before which the engine reads the states, as EAGLE-3 numbers them."""
    if "speculators_model_type" in config:
        return list(config.get(LAYER_IDS_OF_SPECULATORS) or [])
    section = config.get(SECTION) or {}
    ids = section.get(LAYER_IDS) or config.get(LAYER_IDS) or ()
    layers = [index + 1 for index in ids]
    of_engine = list(config.get(TOP_LEVEL_IDS) or layers)  # gpu_model_runner.py, eagle3_utils.py
    if of_engine != layers:
        raise OutriderError(
            f"{path}: {LAYER_IDS} = {list(ids)} are the residual streams before layers {layers},"
            f" but vLLM reads those before layers {of_engine}, which {TOP_LEVEL_IDS} names; remove"
            " the wrong key"
        )
    return layers


def max_dflash_drafts(config: Mapping[str, Any], from_anchor: bool = False) -> int | None:
    """Drafts of the block that the head was trained with; None if config.json has no block.

    The first of `block_size` slots drafts only with `sample_from_anchor`; `from_anchor` is its
    default.
    """
    section = config.get(SECTION) or {}
    block = config.get("block_size", section.get("block_size"))
    if block is None:
        return None
    from_anchor = section.get(FROM_ANCHOR, config.get(FROM_ANCHOR, from_anchor))
    return int(block) if from_anchor else int(block) - 1


def plain_dflash_config(
    target_config: Mapping[str, Any], head: HeadConfig, drafts: int
) -> dict[str, Any]:
    """config.json of a new head, in the plain layout."""
    layers = chosen_layers(target_config, head)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        **llama_widths(target_config["hidden_size"]),
        "rope_theta": chosen_theta(target_config, head),
        **one_layer_config(target_config, head, drafts),
        "layer_types": ["full_attention"],
        SECTION: {
            MASK_TOKEN: spare_token(target_config),
            LAYER_IDS: [index - 1 for index in layers],
            "causal": False,
        },
    }


def dflash_speculators_config(
    config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any]:
    """config.json in the format of vllm-project/speculators.

    The layer's settings are in `transformer_layer_config`; the mask token and the target's layers,
    numbered as in EAGLE-3, are at the top level. `sliding_window_non_causal` is true because
    vLLM 0.32 takes false to mean a causal block, even with full attention.
    """
    shape = read_dflash_shape(config, target_config, "config.json")
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
    for name, stored_name in eagle_checkpoint_names(stored).items():
        if name.startswith(LAYER):
            name = LAYER_OF_SPECULATORS + name.removeprefix(LAYER)
        names[name] = stored_name
    return names


def cpu_refusal(config: Mapping[str, Any]) -> str | None:
    """Why vLLM on a CPU cannot serve the head; None if it can."""
    count = layer_config(config).get("num_hidden_layers", 1)
    if count == 1:
        return None
    return (
        f"num_hidden_layers = {count}: vLLM 0.32 on a CPU silently norms the keys of all layers of"
        " such a head with the first layer's weight; measure it on a GPU, or an endpoint that"
        " serves it with `outrider eval --server URL`"
    )


def _check_unrolled(config: Mapping[str, Any], path: object) -> None:
    layer = layer_config(config)
    section = config.get(SECTION) or {}
    count = layer.get("num_hidden_layers", 1)
    rotation = refused_rope(head_rope(layer, DEFAULT_THETA))
    if count != 1:
        raise OutriderError(unsupported_head(path, f"num_hidden_layers = {count}"))
    if "sliding_attention" in (layer.get("layer_types") or ()) or section.get("use_swa"):
        raise OutriderError(unsupported_head(path, "a sliding window (layer_types or use_swa)"))
    if rotation:
        raise OutriderError(unsupported_head(path, rotation))


def _check_served(
    layer: Mapping[str, Any], section: Mapping[str, Any], config: Mapping[str, Any], path: object
) -> None:
    causal = section.get("causal", config.get("is_causal"))
    if "speculators_model_type" in config:
        # vLLM takes `false` to mean a causal block.
        causal = not config.get("sliding_window_non_causal", True)
    wrong = {
        "causal": bool(causal),
        "attention_sink_bias": section.get(
            "attention_sink_bias", layer.get("add_swa_attention_sink_bias")
        ),
        "attention_value_scale": section.get("attention_value_scale"),
        "use_aux_hidden_state": {**config, **section}.get("use_aux_hidden_state") is False,
        FROM_ANCHOR: section.get(FROM_ANCHOR),
        "attention_bias": layer.get("attention_bias"),
        "is_neox_style": layer.get("is_neox_style", True) is False,
        "hidden_act": layer.get("hidden_act", "silu") != "silu",
        "logit_scale": config.get("logit_scale", 1.0) != 1.0,
    }
    for key, differs in wrong.items():
        if differs:
            raise OutriderError(
                f"{path}: {key}: Outrider neither trains nor replays such a head. It trains and"
                " replays heads with full, non-causal attention, SiLU and no biases; train one from"
                " scratch (speculator.base: none), or measure an endpoint that serves this one with"
                " `outrider eval --server URL`"
            )
