"""Why a target is not supported, and what to do next. Reads config.json only; no torch.

    refusal(config, "Qwen3VLForConditionalGeneration")   # "its text part is ...; measure it ..."

The reasons follow from keys of config.json, not from names, so they hold for models that did not
exist when this was written. The drafters are those that vLLM 0.32 reads from the target's own
checkpoint (config/speculative.py, `hf_config_override`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

EXAMPLES = {
    "DeepseekV3ForCausalLM": "DeepSeek-R1 and V3.1, Kimi-K2",
    "Glm4MoeForCausalLM": "GLM-4.5 to 4.7",
    "LlamaForCausalLM": "Llama-3.3-70B",
    "MistralForCausalLM": "Mistral-7B",
    "Qwen2ForCausalLM": "QwQ-32B",
    "Qwen3ForCausalLM": "Qwen3-32B",
    "Qwen3MoeForCausalLM": "Qwen3-235B-A22B",
}
"""Supported architectures, each with published models."""

CLASSES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Supported architectures by `model_type`."""

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of a multimodal config.json that contain the configuration of its language model."""

RECURRENT = re.compile(
    r"(mamba|ssm|linear_attn|linear_num|linear_conv|lru|kda|gdn|rwkv|time_mix)\w*"
    r"|conv_L_cache|hybrid_override_pattern|layer_group_size|attn_layer_indices|state_size"
)
"""Keys of layers that keep a recurrent state instead of keys and values."""

RECURRENT_LAYERS = {"linear_attention", "mamba", "recurrent", "conv", "lightning_attention"}
"""Values of `layer_types` for such layers."""

LAYER_NORM = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon")

SCALED = (
    "final_logit_softcapping", "query_pre_attn_scalar",  # Gemma
    "logit_scale", "embedding_multiplier", "logits_scaling", "lm_head_multiplier",
    "scale_emb", "dim_model_base",  # MiniCPM
)  # fmt: skip
"""Keys that scale the embedding or the logits."""

OWN_DRAFTERS = frozenset({
    "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots3_note", "ernie4_5_moe",
    "exaone4_5", "exaone_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "inkling_mm_model",
    "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3", "longcat_flash",
    "minimax_m3_vl", "nemotron_h", "nemotron_h_puzzle", "pangu_ultra_moe", "qwen3_5",
    "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp",
    "qwen4_exp_text", "step3p5", "step3p7",
    # Those that vLLM recognizes by their architecture.
    "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
    "BailingMoeV3VLForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmOcrForConditionalGeneration", "MiMoForCausalLM", "MiMoV2FlashForCausalLM",
    "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3", "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
})  # fmt: skip
"""`model_type` or architecture of targets whose checkpoints may have an MTP layer for vLLM 0.32."""

DRAFTER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys with the number of MTP layers in the checkpoint."""

ONE_LAYER_UNLESS_SET = frozenset({
    "dots3_note", "longcat_flash", "minimax_m3_vl", "step3p5", "step3p7", "MiMoV2FlashForCausalLM",
    "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM",
})  # fmt: skip
"""Of `OWN_DRAFTERS`: vLLM assumes one layer without such a key."""

WITHOUT_STATES = frozenset({
    "Cohere2ForCausalLM", "CohereForCausalLM", "Exaone4ForCausalLM", "ExaoneMoEForCausalLM",
    "FalconH1ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration", "Gemma3nForConditionalGeneration", "GemmaForCausalLM",
    "Glm4ForCausalLM", "Glm4MoeLiteForCausalLM", "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration", "GraniteMoeForCausalLM", "InternLM2ForCausalLM",
    "InternVLChatModel", "MixtralForCausalLM", "OlmoeForCausalLM", "Phi4MMForCausalLM",
    "PhiMoEForCausalLM", "Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration",
    "StableLmForCausalLM", "Step3p5ForCausalLM",
})  # fmt: skip
"""Architectures without `SupportsEagle3` in vLLM 0.32, among those that are often served."""

DSPARK = "deepseek_v41"
"""`model_type` of targets whose own drafter is DSpark's (stages under `mtp.*`)."""


def refusal(config: Mapping[str, Any], name: str) -> str:
    """The reason in one sentence, the nearest supported target, and how to measure the endpoint."""
    steps = [_reason(config, name)]
    if settings := own_drafter(config):
        steps.append(f"it ships a drafter: serve it with --speculative-config '{settings}'")
    elif unserved := _unserved_layers(config):
        steps.append(f"vLLM 0.32 has no MTP for it, in spite of {unserved}: no method mtp")
    if name in WITHOUT_STATES:
        steps.append("vLLM 0.32 has no EAGLE-3, P-EAGLE or DFlash for it")
    if nearest := _nearest(config, name):
        steps.append(f"nearest supported target: {nearest} ({EXAMPLES[nearest]})")
    else:
        models = "; ".join(EXAMPLES.values())
        steps.append(f"no target of this family is supported (supported: {models})")
    steps.append("`outrider eval RECIPE --server URL` measures any vLLM endpoint")
    return "; ".join(steps)


def own_drafter(config: Mapping[str, Any]) -> str | None:
    """vLLM 0.32's settings for the drafter in the target's checkpoint; None without one."""
    names = {config.get("model_type"), *(config.get("architectures") or [])}
    if DSPARK in names:
        return '{"method": "dspark"}'
    if not OWN_DRAFTERS & names:
        return None
    parts = [config, *_parts(config), config.get("mtp_config") or {}]
    counts = [part[key] for part in parts for key in DRAFTER_LAYERS if part.get(key) is not None]
    assumed = not counts and ONE_LAYER_UNLESS_SET & names
    if not assumed and not any(isinstance(count, int) and count > 0 for count in counts):
        return None
    return '{"method": "mtp", "num_speculative_tokens": 1}'


def _unserved_layers(config: Mapping[str, Any]) -> str | None:
    """The key and the number of a target's MTP layers, which vLLM 0.32 does not serve."""
    for key in DRAFTER_LAYERS:
        count = config.get(key)
        if isinstance(count, int) and count > 0:
            return f"{key} = {count}"
    return None


def text_part(config: Mapping[str, Any]) -> str | None:
    """Class or `model_type` of a multimodal target's language model; None if unknown."""
    for part in reversed(list(_parts(config))):
        names = part.get("architectures") or []
        by_type = CLASSES.get(str(part.get("model_type")), part.get("model_type"))
        if names or by_type:
            return str(names[0] if names else by_type)
    return None


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model: the innermost part of a multimodal target's."""
    return [config, *_parts(config)][-1]


def _reason(config: Mapping[str, Any], name: str) -> str:
    """The first reason that the keys of config.json show."""
    part = text_part(config)
    if part is not None:
        supported = " (supported as a checkpoint by itself)" if part in EXAMPLES else ""
        return f"it reads more than text; its text part is {part}{supported}"
    if config.get("is_encoder_decoder") or {"encoder_layers", "decoder_layers"} & config.keys():
        return "it has an encoder, and drafters for decoders only are trained"
    if name.endswith(("Classification", "ForMaskedLM", "RewardModel", "Bidirectional", "Ranking")):
        return "it scores or embeds text and generates none"
    if "index_topk" in config or "sparse" in name.lower() or "sparse_attention_config" in config:
        return "its sparse attention (the indexer) is neither captured nor trained here"
    layer_types = config.get("layer_types") or []
    recurrent = sorted(filter(RECURRENT.fullmatch, config))
    if recurrent or RECURRENT_LAYERS & set(map(str, layer_types)):
        key = recurrent[0] if recurrent else "layer_types"
        return f"some of its layers keep a recurrent state ({key}), which is not captured here"
    layer_norm = [key for key in LAYER_NORM if key in config]
    if layer_norm and "rms_norm_eps" not in config:
        return f"its last norm is a LayerNorm ({layer_norm[0]}), and only RMSNorm is computed here"
    if scales := [key for key in SCALED if config.get(key) is not None]:
        return f"its embedding or logits are scaled ({scales[0]}), which is not computed here"
    if name.endswith("ForConditionalGeneration"):
        return "it reads more than text, and its config.json does not describe a text part"
    return "its hidden states and head have not been compared with vLLM's"


def _nearest(config: Mapping[str, Any], name: str) -> str | None:
    """The supported architecture with the longest common prefix; None in another family.

    Of several, one with experts if the target has experts.
    """
    part = text_part(config)
    if part in EXAMPLES:
        return part
    experts = any(
        "experts" in key for part_config in (config, *_parts(config)) for key in part_config
    )
    names = {candidate: candidate for candidate in EXAMPLES} | CLASSES
    ranked = []
    for candidate, architecture in names.items():
        family = re.match("[A-Z]?[a-z]+", candidate)
        common = _common(candidate.replace("_", "").lower(), name.lower())
        if family is not None and common >= len(family[0]):
            ranked.append((common, ("Moe" in architecture) == experts, architecture))
    return max(ranked)[-1] if ranked else None


def _common(first: str, second: str) -> int:
    """Length of the common prefix."""
    pairs = zip(first, second, strict=False)
    return next(
        (index for index, (left, right) in enumerate(pairs) if left != right),
        min(len(first), len(second)),
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Configurations of language models within the config, outermost first."""
    for key in TEXT_PARTS:
        part = config.get(key)
        if isinstance(part, Mapping):
            yield part
            yield from _parts(part)
