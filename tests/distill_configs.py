"""Published shapes of R1's distilled models: config.json without weights."""

from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _config(
    architecture: str,
    model_type: str,
    widths: tuple[int, int, int, int, int],
    vocabulary: int,
    **more: Any,
) -> dict[str, Any]:
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
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


def _llama(*widths: int) -> dict[str, Any]:
    rope = {"rope_theta": 500000.0, "rope_scaling": LLAMA3}
    return _config("LlamaForCausalLM", "llama", widths, 128256, **rope)


def _qwen2(*widths: int, vocabulary: int = 152064) -> dict[str, Any]:
    return _config("Qwen2ForCausalLM", "qwen2", widths, vocabulary, rope_theta=1e6)


DISTILLS = {
    "Llama-8B": (_llama(4096, 14336, 32, 32, 8), 8.03e9, 131_072),
    "Llama-70B": (_llama(8192, 28672, 80, 64, 8), 70.55e9, 327_680),
    "Qwen-1.5B": (_qwen2(1536, 8960, 28, 12, 2, vocabulary=151936), 1.78e9, 28_672),
    "Qwen-7B": (_qwen2(3584, 18944, 28, 28, 4), 7.62e9, 57_344),
    "Qwen-14B": (_qwen2(5120, 13824, 48, 40, 8), 14.77e9, 196_608),
    "Qwen-32B": (_qwen2(5120, 27648, 64, 40, 8), 32.76e9, 262_144),
    "0528-Qwen3-8B": (
        _config(
            "Qwen3ForCausalLM",
            "qwen3",
            (4096, 12288, 36, 32, 8),
            151936,
            head_dim=128,
            rope_theta=1e6,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        ),
        8.19e9,
        147_456,
    ),
}
"""By name: config.json, the published number of parameters, and bytes of KV cache a token."""
