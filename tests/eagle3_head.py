"""A random EAGLE-3 head for a target, in the form of the published ones: one Llama layer, a draft vocabulary of its own.

    write_eagle3_head(nano_r1, tmp_path / "head")

Names as in yuhuili/EAGLE3-* and as vLLM's llama_eagle3.py reads them: fc over three of the target's states, `midlayer`, whose attention
takes [embedding ; state], norm, lm_head over the draft vocabulary, d2t with target id = draft id + d2t[draft id].
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HEAD_DIM = 64


def write_eagle3_head(target: Path, directory: Path, seed: int = 0, **changed) -> Path:
    """The directory. The embedding is the target's own, and every second token of the first half of the vocabulary is drafted; `changed`
    are keys of config.json to write otherwise."""
    torch.manual_seed(seed)
    config = json.loads((target / "config.json").read_text())
    hidden, vocab, intermediate = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    drafts = vocab // 4

    def linear(out: int, into: int) -> torch.Tensor:
        return (torch.randn(out, into) / into**0.5).bfloat16()

    tensors = {
        "embed_tokens.weight": load_file(target / "model.safetensors")["model.embed_tokens.weight"],
        "fc.weight": linear(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": linear(drafts, hidden),
        "d2t": torch.arange(drafts),  # draft token i is the target's 2 i
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, 2 * torch.arange(drafts), True),
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors[f"midlayer.self_attn.{name}.weight"] = linear(hidden, 2 * hidden)
    tensors["midlayer.self_attn.o_proj.weight"] = linear(hidden, hidden)
    for name in ("gate_proj", "up_proj"):
        tensors[f"midlayer.mlp.{name}.weight"] = linear(intermediate, hidden)
    tensors["midlayer.mlp.down_proj.weight"] = linear(hidden, intermediate)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "draft_vocab_size": drafts,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // HEAD_DIM,
        "num_key_value_heads": hidden // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": config["rms_norm_eps"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    (directory / "config.json").write_text(json.dumps(settings | changed, indent=2))
    return directory
