"""Random targets of the architectures without MLA: Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE.

    write_tiny_decoder("LlamaForCausalLM", tmp_path / "target", tokenizer_of=nano_r1)

Two layers of width 64, grouped queries, heads of 32: the smallest that vLLM takes on a CPU. Every
norm and bias is random, so that one which is left out is noticed.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 97
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
DECODERS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "rope_parameters": LLAMA3,
    },
    "MistralForCausalLM": {
        "model_type": "mistral",
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "Qwen2ForCausalLM": {"model_type": "qwen2", "tie_word_embeddings": True},
    "Qwen3ForCausalLM": {
        "model_type": "qwen3",
        "tie_word_embeddings": False,
        "rope_parameters": YARN,
    },
    "Qwen3MoeForCausalLM": {
        "model_type": "qwen3_moe",
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
"""What differs from SIZES, by architecture."""


def write_tiny_decoder(
    architecture: str,
    directory: Path,
    vocabulary: int = VOCAB,
    tokenizer_of: Path | None = None,
    **sizes: Any,
) -> Path:
    """Writes config.json and bf16 weights, and the tokenizer of another target; the directory."""
    settings = SIZES | {"vocab_size": vocabulary} | DECODERS[architecture] | sizes
    config = AutoConfig.for_model(**settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.bfloat16).save_pretrained(directory)
    if tokenizer_of is not None:
        for name in TOKENIZER:
            shutil.copyfile(tokenizer_of / name, directory / name)
    return directory
