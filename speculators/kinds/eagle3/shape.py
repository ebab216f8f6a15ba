"""Shape and tensor names of an EAGLE-3 head, from config.json. No torch.

    shape = EagleShape.read(config, target_config, path)     # either published layout
    plain_eagle_config(target_config, HeadConfig(), drafts=256)    # for a new head

There are two published layouts: the plain one of vLLM and SGLang, and that of
vllm-project/speculators, with a section for the layer (`transformer_layer_config`). Missing keys
take the defaults of vLLM 0.32 (llama_eagle3.py, deepseek_eagle3.py, configs/speculators/algos.py).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import DERIVED
from outrider.speculators.checkpoints.model_config import check_head_keys
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.layers.rope import head_rope, refused_rope, rope_of

EMBEDDING = "embed_tokens.weight"
"""A copy of the target's embedding in public heads; checked, never loaded."""

D2T, T2D = "d2t", "t2d"

MAPS = frozenset({D2T, T2D})
"""Tensors of the draft vocabulary: integers or booleans, never trained."""

LAYER, LAYER_OF_SPECULATORS = "midlayer.", "layers.0."

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""Key of the target's layers: at the top level for vLLM, in `eagle_config` for others."""

DEFAULT_AUX_STATES = 3
"""Number of target states read if a head's config.json names no layers (llama_eagle3.py)."""

DEFAULT_THETA = 10000.0
"""Base of Llama's rotary embedding if config.json has none."""

PARALLEL_OF_SPECULATORS = "peagle"
"""`speculators_model_type` of a parallel drafter; SpecForge's architecture has it, too."""

MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Keys of the mask token, the placeholder for unknown drafts."""

OF_LATENT_ATTENTION = (
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_interleave",
)
"""Keys that a head with DeepSeek's attention copies from its target."""

SPECULATORS_VERSION = "0.9.0"
"""Version of the vllm-project/speculators format that is written."""

OF_THE_HEAD = (
    "architectures",
    "draft_vocab_size",
    LAYER_IDS,
    "eagle_config",
    "fc_norm",
    "norm_before_residual",
    "norm_output",
    "pard_token",
    "target_hidden_size",
    "torch_dtype",
)
"""Keys of the plain config.json that do not describe the layer."""

LLAMA = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Classes of heads with Llama's attention, whatever their `model_type` (vLLM's registry.py)."""

DEEPSEEK_MODEL_TYPES = ("deepseek_v2", "kimi_k2")
"""`model_type` of a head with DeepSeek's attention. vLLM reads kimi_k2 as DeepSeek-V3's
configuration (transformers_utils/config.py) and, unlike deepseek_v3, does not take it for MTP."""


@dataclasses.dataclass(frozen=True)
class EagleShape:
    """Widths and options of one head."""

    vocab: int
    drafts: int
    """Size of the draft vocabulary."""
    target_hidden: int
    hidden: int
    layers: tuple[int, ...]
    """Target layers before which the residual stream is read, ascending."""
    intermediate: int
    norm_eps: float
    heads: int
    kv_heads: int
    head_dim: int
    """Width of a query or key in Llama's attention."""
    rope: Mapping[str, Any] = dataclasses.field(hash=False)
    """Parameters of Llama's rotary embedding (`head_rope`)."""
    latent: Mapping[str, Any] | None = dataclasses.field(compare=False)
    """config.json of a head with DeepSeek's attention; None for Llama's."""
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    mask_token: int | None = None
    """Mask token of a parallel drafter; None for sequential drafting."""
    markov_rank: int = 0
    """Rank of the logit bias from the preceding token; 0: no bias."""

    @classmethod
    def read(
        cls, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> "EagleShape":
        """Reads the config.json at `path`; raises an `OutriderError` for unsupported heads.

        More than one layer, a head without `lm_head`, biases, windows, activations other than SiLU
        and rotary embeddings that rotary.py does not compute are unsupported.
        """
        layer = layer_config(config)
        check_head_keys(layer, path)
        # The speculators format defaults `norm_before_residual` to true, or false for peagle.
        of_speculators = config.get("speculators_model_type") not in (None, PARALLEL_OF_SPECULATORS)
        _check_supported(layer, config, path)
        latent = layer if is_latent(config) else None
        eagle = config.get("eagle_config") or {}
        heads = layer["num_attention_heads"]
        hidden = layer["hidden_size"]
        return cls(
            vocab=layer["vocab_size"],
            drafts=config.get("draft_vocab_size") or layer["vocab_size"],
            target_hidden=config.get("target_hidden_size") or hidden,
            hidden=hidden,
            layers=eagle_layers(config, target_config, path),
            intermediate=layer["intermediate_size"],
            norm_eps=layer["rms_norm_eps"],
            heads=heads,
            kv_heads=layer.get("num_key_value_heads") or heads,
            head_dim=layer.get("head_dim") or hidden // heads,
            rope=head_rope(layer, DEFAULT_THETA),
            latent=latent,
            fc_norm=bool(config.get("fc_norm", False)),
            norm_before_fc=bool(eagle.get("norm_before_fc", config.get("norm_before_fc", False))),
            norm_before_residual=bool(config.get("norm_before_residual", of_speculators)),
            norm_output=bool(config.get("norm_output", False)),
            mask_token=mask_token(config),
        )

    @property
    def states(self) -> int:
        """Number of values per token that `fc` reads."""
        return len(self.layers) * self.target_hidden

    @property
    def fits(self) -> bool:
        """Whether closed_form.py fits it: Llama's attention, no norm in the residual stream."""
        return self.latent is None and not (
            self.fc_norm or self.norm_before_fc or self.norm_before_residual or self.norm_output
        )


def eagle_checkpoint_names(stored: Iterable[str]) -> dict[str, str]:
    """Maps tensor names in the plain layout to stored names."""
    names = {}
    for name in stored:
        plain = name.removeprefix("model.")
        if plain.startswith(LAYER_OF_SPECULATORS):
            plain = LAYER + plain.removeprefix(LAYER_OF_SPECULATORS)
        if plain != EMBEDDING and not plain.endswith(DERIVED):
            names[plain] = name
    return names


def twin_config(
    config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any] | None:
    """config.json in the speculators format; None if the head is unsupported."""
    shape = EagleShape.read(config, target_config, "config.json")
    if shape.latent is not None or shape.fc_norm or shape.norm_output:
        return None
    algorithm = "eagle3"
    architecture = "Eagle3Speculator"
    mask = {}
    if shape.mask_token is not None:
        algorithm = PARALLEL_OF_SPECULATORS
        architecture = "PEagleSpeculator"
        mask = {"mask_token_id": shape.mask_token}
    return {
        **of_speculators(
            algorithm=algorithm,
            architecture=architecture,
            target_config=target_config,
            target=target,
            drafts=drafts,
        ),
        "torch_dtype": config.get("torch_dtype", "bfloat16"),
        "draft_vocab_size": shape.drafts,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        LAYER_IDS: list(shape.layers),
        **mask,
        "transformer_layer_config": {
            key: value for key, value in config.items() if key not in OF_THE_HEAD
        },
    }


def of_speculators(
    algorithm: str, architecture: str, target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any]:
    """Keys that every kind's config.json has in the speculators format."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": drafts,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": target,
                "architectures": list(target_config.get("architectures") or []),
            },
        },
    }


def layer_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the layer."""
    return config.get("transformer_layer_config") or config


def eagle_layers(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> tuple[int, ...]:
    """Layers before which the head reads the residual stream: config.json's, or vLLM's default."""
    count = target_config["num_hidden_layers"]
    return auxiliary_layers(config, count, path) or default_layers(count)


def auxiliary_layers(config: Mapping[str, Any], count: int, path: object) -> tuple[int, ...] | None:
    """The auxiliary layers that config.json names, of a target with `count` layers.

    vLLM reads the top-level key first (gpu_model_runner.py, eagle3_utils.py). The nested one is for
    SGLang; only vLLM's model runner V1 reads it too, and only V2 reads a nested `layer_ids`, both
    as they are.
    """
    if config.get(LAYER_IDS):
        return tuple(config[LAYER_IDS])
    eagle = config.get("eagle_config") or {}
    of_v2 = tuple(eagle.get("layer_ids") or ())
    if not eagle.get(LAYER_IDS):
        return of_v2 or None
    layers = _from_nested(eagle[LAYER_IDS], count, path)
    if of_v2 and of_v2 != layers:
        raise OutriderError(
            f"{path}: eagle_config.{LAYER_IDS} = {eagle[LAYER_IDS]} are the residual streams before"
            f" layers {list(layers)}, but vLLM's model runner V2 reads eagle_config.layer_ids ="
            f' {list(of_v2)}; add the right ones as "{LAYER_IDS}" at the top level'
        )
    return layers


def _from_nested(ids: Sequence[int], count: int, path: object) -> tuple[int, ...]:
    """Layers before which to read, from the nested ids.

    SpecForge (model_providers.py) and Model-Optimizer (hf_eagle.py) count outputs of layers: their
    first id is usually 1, the residual stream before layer 2. SGLang adds 1 to all ids, in
    DeepSeek's models only if the first is 1 (sglang#25454): heads with 2 first count as vLLM does.
    """
    after = tuple(index + 1 for index in ids)
    if ids[0] == 2 or max(ids) >= count:  # no layer has the number `count`
        return tuple(ids)
    if ids[0] == 1:
        return after
    raise OutriderError(
        f"{path}: eagle_config.{LAYER_IDS} = {list(ids)}: SpecForge and Model-Optimizer mean the"
        f" residual streams before layers {list(after)}, vLLM's model runner V1 reads those before"
        f" layers {list(ids)}, and V2 its default; add the ones that the head was trained with to"
        f' that file, such as "{LAYER_IDS}": {list(after)} at the top level'
    )


def mask_token(config: Mapping[str, Any]) -> int | None:
    """The mask token, under the first of `MASK_TOKENS` that is set."""
    return next((config[key] for key in MASK_TOKENS if config.get(key) is not None), None)


def spare_token(target_config: Mapping[str, Any]) -> int:
    """A mask token that never occurs before the end of a text.

    The padding token or, without one, the end-of-text token, after which nothing is drafted.
    """
    ends = target_config.get("eos_token_id")
    candidates = [target_config.get("pad_token_id"), *(ends if isinstance(ends, list) else [ends])]
    rows = range(target_config["vocab_size"])  # some targets have a padding token of -1
    return next((token for token in candidates if token in rows), 0)


def default_layers(count: int) -> tuple[int, ...]:
    """vLLM's default layers: three, or fewer if the target has few layers."""
    return tuple(sorted({index for index in (2, count // 2, count - 3) if 1 <= index <= count}))


def plain_eagle_config(
    target_config: Mapping[str, Any], head: HeadConfig, drafts: int
) -> dict[str, Any]:
    """config.json of a new head, in vLLM's and SGLang's layout."""
    return {
        **_attention(target_config, head),
        **one_layer_config(target_config, head, drafts),
        "norm_before_residual": False,
        **named_layers(chosen_layers(target_config, head), target_config),
    }


def named_layers(layers: Sequence[int], target_config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json keys that name a head's auxiliary layers, for vLLM and for SGLang."""
    return {
        LAYER_IDS: list(layers),
        "num_aux_hidden_states": len(layers),
        "eagle_config": {LAYER_IDS: sglang_ids(layers, target_config)},
    }


def completed_config(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> dict[str, Any]:
    """config.json from which every engine reads the states that the head was made for.

    Without the top-level key, vLLM's model runners V1 and V2 read different layers
    (`auxiliary_layers`). vLLM builds fc for `num_aux_hidden_states` states, and takes a null
    `use_aux_hidden_state` for false.
    """
    completed = dict(config)
    count = target_config["num_hidden_layers"]
    layers = auxiliary_layers(config, count, path)
    eagle = dict(config.get("eagle_config") or {})
    states = config.get("num_aux_hidden_states")
    if states is None:
        states = len(eagle.get(LAYER_IDS) or ()) or DEFAULT_AUX_STATES
    if "speculators_model_type" not in config:
        read = len(layers or default_layers(count))
        if states != read and (layers or not states):
            completed["num_aux_hidden_states"] = read
        if layers:
            completed[LAYER_IDS] = list(layers)
        # Without nested ids, SGLang has vLLM's default.
        if layers and (eagle.get(LAYER_IDS) or layers != default_layers(count)):
            eagle[LAYER_IDS] = sglang_ids(layers, target_config)
    if "use_aux_hidden_state" in eagle and eagle["use_aux_hidden_state"] is None:
        eagle["use_aux_hidden_state"] = True
    if eagle != (config.get("eagle_config") or {}):
        completed["eagle_config"] = eagle
    return completed


def sglang_ids(layers: Sequence[int], target_config: Mapping[str, Any]) -> list[int]:
    """The nested ids with which SGLang captures the residual streams before `layers`.

    SGLang adds 1 (`set_eagle3_layers_to_capture`), in DeepSeek's models only if the first id is 1
    (sglang#25454, May 2026). The order is free otherwise, since SGLang captures in the order of its
    layers. So there, layer 1 is not written first; alone, SGLang cannot capture it.
    """
    after = [index - 1 for index in layers]
    adds_one = not any("Deepseek" in name for name in target_config.get("architectures") or ())
    if adds_one or layers[0] == 2:
        return after
    return [*layers[1:2], layers[0], *layers[2:]] if layers[0] == 1 else list(layers)


def one_layer_config(
    target_config: Mapping[str, Any], head: HeadConfig, drafts: int
) -> dict[str, Any]:
    """The config.json keys that all one-layer heads share."""
    return {
        # transformers 5 writes `dtype`.
        "torch_dtype": target_config.get("dtype", target_config.get("torch_dtype", "bfloat16")),
        "vocab_size": target_config["vocab_size"],
        "draft_vocab_size": drafts,
        "hidden_size": target_config["hidden_size"],
        "intermediate_size": target_config["intermediate_size"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": target_config["rms_norm_eps"],
        "max_position_embeddings": target_config["max_position_embeddings"],
        "tie_word_embeddings": False,
        "attention_bias": False,
    }


def chosen_layers(target_config: Mapping[str, Any], head: HeadConfig) -> tuple[int, ...]:
    """Layers before which a head trained from scratch reads the residual stream."""
    count = target_config["num_hidden_layers"]
    layers = default_layers(count) if head.layers == "auto" else tuple(head.layers)
    check_layers(layers, count, "speculator.head.layers")
    return layers


def check_layers(layers: Sequence[int], count: int, where: str) -> None:
    """Raises an `OutriderError` unless `layers` ascend strictly within [1, `count`]."""
    if not layers or list(layers) != sorted({*layers}) or layers[0] < 1 or layers[-1] > count:
        raise OutriderError(
            f"{where} = {list(layers)}, but the target has {count} layers, and the engine reads the"
            f" residual stream before layers 1 to {count}, in ascending order, each once;"
            " reorder them (in a stored head, together with the columns of fc.weight), or set"
            " target.model to the target that the head was made for"
        )


def _attention(target_config: Mapping[str, Any], head: HeadConfig) -> dict[str, Any]:
    if head.layer_type == "mla":
        return {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": DEEPSEEK_MODEL_TYPES[0],
            "first_k_dense_replace": 1,
            **{key: target_config[key] for key in OF_LATENT_ATTENTION if key in target_config},
        }
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **llama_widths(target_config["hidden_size"]),
        "rope_theta": chosen_theta(target_config, head),
    }


def llama_widths(hidden: int) -> dict[str, Any]:
    """Settings of Llama's attention for a drafter of this width."""
    head_dim = 128 if hidden % 128 == 0 and hidden >= 1024 else 64
    heads = max(1, hidden // head_dim)
    # At most 8 KV heads, so the KV cache takes 4 kB per token at R1's widths. vLLM divides them
    # among tensor-parallel ranks, so 4 are better than 7.
    counts = (count for count in range(1, 9) if heads % count == 0)
    kv_heads = max(counts, key=lambda count: (count & -count, count))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def is_latent(config: Mapping[str, Any]) -> bool:
    """Whether a head has DeepSeek's attention: by `model_type`, unless its class is Llama's."""
    of_llama = set(LLAMA) & set(config.get("architectures") or ())
    return layer_config(config).get("model_type") in DEEPSEEK_MODEL_TYPES and not of_llama


def check_width(shape: EagleShape, path: object) -> None:
    """Refuses a head that is not as wide as its target."""
    if shape.hidden != shape.target_hidden:
        raise OutriderError(
            f"{path}: hidden_size is {shape.hidden}, but the target's is {shape.target_hidden}:"
            " such a head has its own embedding, so Outrider neither trains nor replays it; choose"
            " another base, or train a new head (speculator.base: none)"
        )


def chosen_theta(target_config: Mapping[str, Any], head: HeadConfig) -> float:
    """Base of a new head's rotary embedding."""
    if head.rope_theta == "target":
        return float(rope_of(target_config)["rope_theta"])
    return head.rope_theta


def _check_supported(layer: Mapping[str, Any], config: Mapping[str, Any], path: object) -> None:
    model_type = layer.get("model_type", "llama")
    latent = is_latent(config)
    if not latent and model_type in DEEPSEEK_MODEL_TYPES:
        raise OutriderError(
            f"{path}: model_type = {model_type}, whose attention is DeepSeek's, but architectures ="
            f' {config["architectures"]} is a class with Llama\'s; set model_type to "llama" in a'
            " copy of the head"
        )
    eagle = config.get("eagle_config") or {}
    # Null is no value (vLLM's llama_eagle3.py would take it for false); exporters fill templates.
    wrong = {
        "model_type": not latent and model_type != "llama",
        "num_hidden_layers": layer.get("num_hidden_layers", 1) != 1,
        "layer_types": "sliding_attention" in (layer.get("layer_types") or ()),
        "attention_bias": layer.get("attention_bias"),
        "mlp_bias": layer.get("mlp_bias"),
        "hidden_act": layer.get("hidden_act", "silu") != "silu",
        "logit_scale": config.get("logit_scale", 1.0) != 1.0,
    }
    reasons = [f"{key} = {layer.get(key, config.get(key))}" for key in wrong if wrong[key]]
    if eagle.get("use_aux_hidden_state", True) is False:
        reasons.append("eagle_config.use_aux_hidden_state = False")
    rotation = _refused_rotation(layer, latent)
    reasons += [rotation] if rotation else []
    if reasons:
        raise OutriderError(unsupported_head(path, reasons[0]))


def _refused_rotation(layer: Mapping[str, Any], latent: bool) -> str | None:
    if not latent:
        return refused_rope(head_rope(layer, DEFAULT_THETA))
    rope_type = rope_of(layer)["rope_type"]
    return None if rope_type in ("default", "yarn") else f"rope_type = {rope_type}"


def unsupported_head(path: object, reason: str) -> str:
    """The message for a head that the engine serves, but that is not unrolled."""
    return (
        f"{path}: {reason}: vLLM serves such a head, but Outrider neither trains nor replays it."
        " It trains and replays heads with one layer, their own lm_head, Llama's or DeepSeek's"
        " attention without a window, SiLU, no biases and a rotary embedding that is plain, linear,"
        " dynamic, llama3 or yarn; measure this one with `outrider eval RECIPE --speculator DIR`,"
        " by the engine's counters, or train a new head (speculator.base: none)"
    )
