"""Published shapes of targets (config.json without weights), and what `outrider init` decides.

PUBLISHED["Kimi-K2"]       # config.json, template, kind, base; an error's words if refused
"""

from typing import Any

from tests.distill_configs import DISTILLS
from tests.r1_config import R1

DENSE = ("r1_distill/template", "eagle3", "ngram")
FROM_SCRATCH = ("r1/template", "eagle3", "ngram")
OWN_LAYER = ("r1/template", "mtp", None)

QWEN3 = ("Qwen3ForCausalLM", "qwen3")
QWEN3_MOE = ("Qwen3MoeForCausalLM", "qwen3_moe")
QWEN2 = ("Qwen2ForCausalLM", "qwen2")
LLAMA = ("LlamaForCausalLM", "llama")
MISTRAL = ("MistralForCausalLM", "mistral")


def _config(
    names: tuple[str, str], widths: tuple[int, ...], vocabulary: int, positions: int, **more: Any
) -> dict[str, Any]:
    architecture, model_type = names
    hidden, intermediate, layers, heads, kv_heads = widths
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


def _qwen3(*widths: int, **more: Any) -> dict[str, Any]:
    return _config(QWEN3, widths, 151936, 40960, **{"head_dim": 128, "rope_theta": 1e6, **more})


def _qwen3_moe(experts: int, *widths: int) -> dict[str, Any]:
    return _config(
        QWEN3_MOE,
        widths,
        151936,
        262144,
        head_dim=128,
        rope_theta=1e7,
        num_experts=experts,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )


def _glm(layers: int, experts: int, *widths: int, **more: Any) -> dict[str, Any]:
    hidden, intermediate, heads = widths
    return _config(
        ("Glm4MoeForCausalLM", "glm4_moe"),
        (hidden, intermediate, layers, heads, 8),
        151552,
        131072,
        head_dim=128,
        partial_rotary_factor=0.5,
        rope_theta=1e6,
        attention_bias=True,
        moe_intermediate_size=1408,
        n_routed_experts=experts,
        use_qk_norm=layers == 92,
        n_shared_experts=1,
        num_experts_per_tok=8,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.0,
        norm_topk_prob=True,
        eos_token_id=[151329, 151336, 151338],
        pad_token_id=151329,
        num_nextn_predict_layers=1,
        **more,
    )


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.61*"]}
FP8_PER_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}
FP8_BLOCKS = R1["quantization_config"]

KIMI_K2 = R1 | {
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "rope_scaling": R1["rope_scaling"] | {"factor": 32.0, "beta_fast": 1.0},
    "max_position_embeddings": 131072,
    "num_nextn_predict_layers": 0,
    "eos_token_id": 163586,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
}
MOONLIGHT = R1 | {
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "vocab_size": 163840,
    "max_position_embeddings": 8192,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
    "quantization_config": None,
}
LLAMA_8B = DISTILLS["Llama-8B"][0]

PUBLISHED: dict[str, tuple[dict[str, Any], tuple[str, str, str | None] | str]] = {
    **{f"R1-Distill-{name}": (row[0], DENSE) for name, row in DISTILLS.items()},
    "Qwen3-0.6B": (_qwen3(1024, 3072, 28, 16, 8, tie_word_embeddings=True), DENSE),
    "Qwen3-4B": (_qwen3(2560, 9728, 36, 32, 8, tie_word_embeddings=True), DENSE),
    "Qwen3-14B": (_qwen3(5120, 17408, 40, 40, 8), DENSE),
    "Qwen3-32B": (_qwen3(5120, 25600, 64, 64, 8), DENSE),
    "Qwen3-32B-AWQ": (_qwen3(5120, 25600, 64, 64, 8, quantization_config=AWQ), DENSE),
    "Qwen3-8B-FP8": (_qwen3(4096, 12288, 36, 32, 8, quantization_config=FP8_BLOCKS), DENSE),
    "Qwen3-30B-A3B": (_qwen3_moe(128, 2048, 6144, 48, 32, 4), DENSE),
    "Qwen3-235B-A22B": (_qwen3_moe(128, 4096, 12288, 94, 64, 4), DENSE),
    "QwQ-32B": (_config(QWEN2, (5120, 27648, 64, 40, 8), 152064, 40960, rope_theta=1e6), DENSE),
    "Qwen2.5-Math-7B": (_config(QWEN2, (3584, 18944, 28, 28, 4), 152064, 4096), DENSE),
    "Llama-3.1-8B": (LLAMA_8B | {"eos_token_id": [128001, 128008, 128009]}, DENSE),
    "Llama-3.2-1B": (
        _config(LLAMA, (2048, 8192, 16, 32, 8), 128256, 131072, tie_word_embeddings=True),
        DENSE,
    ),
    "Llama-3.3-70B": (_config(LLAMA, (8192, 28672, 80, 64, 8), 128256, 131072), DENSE),
    "Llama-2-7B": (_config(LLAMA, (4096, 11008, 32, 32, 32), 32000, 4096), DENSE),
    "TinyLlama": (_config(LLAMA, (2048, 5632, 22, 32, 4), 32000, 2048), DENSE),
    "SmolLM2-135M": (_config(LLAMA, (576, 1536, 30, 9, 3), 49152, 8192), DENSE),
    "Mistral-7B": (
        _config(MISTRAL, (4096, 14336, 32, 32, 8), 32768, 32768, sliding_window=None),
        DENSE,
    ),
    "Mistral-Nemo": (
        _config(MISTRAL, (5120, 14336, 40, 32, 8), 131072, 131072, head_dim=128),
        DENSE,
    ),
    "R1": (R1, OWN_LAYER),
    "V3.1": (R1 | {"quantization_config": FP8_BLOCKS | {"scale_fmt": "ue8m0"}}, OWN_LAYER),
    "R1-BF16": (R1 | {"quantization_config": None}, OWN_LAYER),
    "R1-without-MTP": (R1 | {"num_nextn_predict_layers": 0}, FROM_SCRATCH),
    "R1-AWQ": (R1 | {"quantization_config": AWQ}, FROM_SCRATCH),
    "R1-w4a16": (R1 | {"quantization_config": W4A16}, FROM_SCRATCH),
    "R1-NVFP4": (R1 | {"quantization_config": NVFP4}, FROM_SCRATCH),
    "R1-FP8-per-tensor": (R1 | {"quantization_config": FP8_PER_TENSOR}, FROM_SCRATCH),
    "Kimi-K2": (KIMI_K2, FROM_SCRATCH),
    "Moonlight-16B": (MOONLIGHT, ("template", "eagle3", "ngram")),
    "GLM-4.5-Air": (_glm(46, 128, 4096, 10944, 96), ("template", "mtp", None)),
    "GLM-4.6": (_glm(92, 160, 5120, 12288, 96), ("template", "mtp", None)),
    "GLM-4.6-FP8": (
        _glm(92, 160, 5120, 12288, 96, quantization_config=W4A16),
        "quantization_config has .*compressed-tensors.*point target.model at such a checkpoint",
    ),
    "GLM-4.6-without-MTP": (
        _glm(92, 160, 5120, 12288, 96) | {"num_nextn_predict_layers": 0},
        "does not return the states",
    ),
    "V3.2": (
        R1 | {"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 2048},
        "sparse attention",
    ),
    "gpt-oss": (LLAMA_8B | {"architectures": ["GptOssForCausalLM"]}, "not a supported target"),
    # Odd values that vLLM accepts.
    "no-end": (LLAMA_8B | {"eos_token_id": [], "pad_token_id": -1}, DENSE),
    "rope-without-factor": (
        LLAMA_8B | {"rope_scaling": {"rope_type": "llama3"}},
        "no usable tokenizer .*Missing required keys in `rope_parameters`",
    ),
    # Missing keys.
    **{
        f"Llama-without-{key}": (
            {name: value for name, value in LLAMA_8B.items() if name != key},
            rf"config\.json: no {key}, which .* needs; copy it",
        )
        for key in (
            "model_type",
            "rms_norm_eps",
            "max_position_embeddings",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
        )
    },
    "R1-without-widths": (
        {name: value for name, value in R1.items() if not name.startswith("qk_")},
        "no qk_nope_head_dim, qk_rope_head_dim, which",
    ),
}
"""By name: config.json, and the template, kind and base of its recipe, or why there is none."""
