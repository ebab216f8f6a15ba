"""Shape and tensor names of an EAGLE-3 head, from config.json. No torch.

    shape = EagleShape.read(config, target_config, path)     # either published layout
    plain_config(target_config, HeadConfig(), drafts=256)    # for a new head

There are two published layouts: the plain one of vLLM and SGLang, and that of
vllm-project/speculators, with a section for the layer (`transformer_layer_config`). Missing keys
take the defaults of vLLM 0.32 (llama_eagle3.py, deepseek_eagle3.py, configs/speculators/algos.py).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import DERIVED
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.layers.rope import rope_of

EMBEDDING = "embed_tokens.weight"
"""A copy of the target's embedding in public heads; checked, never loaded."""

D2T, T2D = "d2t", "t2d"

MAPS = frozenset({D2T, T2D})
"""Tensors of the draft vocabulary: integers or booleans, never trained."""

LAYER, LAYER_OF_SPECULATORS = "midlayer.", "layers.0."

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"

PARALLEL_OF_SPECULATORS = "peagle"
"""`speculators_model_type` of a parallel drafter."""

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

DEEPSEEK_MODEL_TYPES = ("deepseek_v2",)
"""`model_type` of a head with DeepSeek's attention."""


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
    theta: float
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

        More than one layer, biases, activations other than SiLU, and scaled rotary embeddings in
        Llama's attention are unsupported.
        """
        layer = layer_config(config)
        # The speculators format defaults `norm_before_residual` to true, or false for peagle.
        of_speculators = config.get("speculators_model_type") not in (None, PARALLEL_OF_SPECULATORS)
        _check_supported(layer, config, path)
        latent = layer if layer.get("model_type") in DEEPSEEK_MODEL_TYPES else None
        eagle = config.get("eagle_config") or {}
        heads = layer["num_attention_heads"]
        hidden = layer["hidden_size"]
        return cls(
            vocab=layer["vocab_size"],
            drafts=config.get("draft_vocab_size") or layer["vocab_size"],
            target_hidden=config.get("target_hidden_size") or hidden,
            hidden=hidden,
            layers=auxiliary_layers(config) or default_layers(target_config["num_hidden_layers"]),
            intermediate=layer["intermediate_size"],
            norm_eps=layer["rms_norm_eps"],
            heads=heads,
            kv_heads=layer.get("num_key_value_heads") or heads,
            head_dim=layer.get("head_dim") or hidden // heads,
            theta=rope_of(layer)["rope_theta"],
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


def checkpoint_names(stored: Iterable[str]) -> dict[str, str]:
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


def auxiliary_layers(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The auxiliary layers that config.json names, in either layout."""
    layers = config.get(LAYER_IDS) or (config.get("eagle_config") or {}).get(LAYER_IDS)
    return tuple(layers) if layers else None


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


def plain_config(target_config: Mapping[str, Any], head: HeadConfig, drafts: int) -> dict[str, Any]:
    """config.json of a new head, in vLLM's and SGLang's layout."""
    return {
        **_attention(target_config, head),
        **one_layer_config(target_config, head, drafts),
        "norm_before_residual": False,
        **named_layers(chosen_layers(target_config, head)),
    }


def named_layers(layers: Sequence[int]) -> dict[str, Any]:
    """The config.json keys that name a head's auxiliary layers.

    vLLM reads the first key; only its model runner V1 would read the nested one. SGLang reads the
    nested one and adds 1 (`set_eagle3_layers_to_capture`).
    """
    return {
        LAYER_IDS: list(layers),
        "num_aux_hidden_states": len(layers),
        "eagle_config": {LAYER_IDS: [index - 1 for index in layers]},
    }


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
        "rope_theta": 10000.0,
    }


def _check_supported(layer: Mapping[str, Any], config: Mapping[str, Any], path: object) -> None:
    model_type = layer.get("model_type", "llama")
    latent = model_type in DEEPSEEK_MODEL_TYPES
    eagle = config.get("eagle_config") or {}
    wrong = {
        "model_type": not latent and model_type != "llama",
        "num_hidden_layers": layer.get("num_hidden_layers", 1) != 1,
        "attention_bias": layer.get("attention_bias"),
        "mlp_bias": layer.get("mlp_bias"),
        "hidden_act": layer.get("hidden_act", "silu") != "silu",
        "logit_scale": config.get("logit_scale", 1.0) != 1.0,
        "use_aux_hidden_state": not eagle.get("use_aux_hidden_state", True),
        "rope_type": not latent and rope_of(layer)["rope_type"] != "default",
    }
    for key in (key for key, differs in wrong.items() if differs):
        raise OutriderError(
            f"{path}: {key} = {layer.get(key, config.get(key))}: vLLM serves such a head, but"
            " Outrider neither trains nor replays it. It trains and replays heads with one layer,"
            " Llama's or DeepSeek's attention, SiLU, no biases and a plain rotary embedding;"
            " measure this one with `outrider eval RECIPE --speculator DIR`, by the engine's"
            " counters"
        )
