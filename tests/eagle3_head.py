"""A random EAGLE-3 head for a target, in the published format.

    write_eagle3_head(nano_r1, tmp_path / "head")
    write_eagle3_head(nano_r1, tmp_path / "head", mla=True)

One layer with its own draft vocabulary. Names as in yuhuili/EAGLE3-* and in vLLM's
llama_eagle3.py and deepseek_eagle3.py: fc over three states of the target, `midlayer`, whose
attention takes [embedding ; state], norm, lm_head over the draft vocabulary, and d2t with
target id = draft id + d2t[draft id]. The attention is Llama's or (`mla`) DeepSeek's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HEAD_DIM = 64


def linear(out: int, into: int) -> torch.Tensor:
    """A random projection, [out, into]."""
    return (torch.randn(out, into) / into**0.5).bfloat16()


def norm(width: int) -> torch.Tensor:
    """Random weights of a norm, [width]."""
    return (1 + 0.1 * torch.randn(width)).bfloat16()


def write_eagle3_head(
    target: Path,
    directory: Path,
    seed: int = 0,
    mla: bool = False,
    layers: Sequence[int] | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    norm_before_fc: bool = False,
    mask_values: int | None = None,
    **changed: Any,
) -> Path:
    """Writes the head and returns its directory.

    The embedding is the target's. The draft vocabulary is every second token of the first half of
    the target's. Without `layers` config.json names none, as many public heads do. `changed`
    replace keys of config.json; with `pard_token` it is a P-EAGLE head.
    """
    torch.manual_seed(seed)
    config = json.loads((target / "config.json").read_text())
    hidden, vocab, intermediate = (
        config[name] for name in ("hidden_size", "vocab_size", "intermediate_size")
    )
    drafts = vocab // 4
    states = 3 if layers is None else len(layers)
    tensors = {
        "embed_tokens.weight": load_file(target / "model.safetensors")["model.embed_tokens.weight"],
        "fc.weight": linear(hidden, states * hidden),
        "norm.weight": norm(hidden),
        "lm_head.weight": linear(drafts, hidden),
        "d2t": torch.arange(drafts),  # draft token i is the target's 2 i
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, 2 * torch.arange(drafts), True),
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = norm(hidden)
    if changed.get("fc_norm"):
        tensors |= {f"fc_norm.{n}.weight": norm(hidden) for n in range(states)}
    if "pard_token" in changed:
        tensors["mask_hidden"] = torch.randn(1, 1, mask_values or states * hidden).bfloat16()
    if norm_before_fc:
        tensors["input_norm.weight"] = norm(states * hidden)
    attention, form = _mla(config) if mla else _llama(config, heads, kv_heads)
    tensors |= {f"midlayer.self_attn.{name}.weight": tensor for name, tensor in attention.items()}
    for name in ("gate_proj", "up_proj"):
        tensors[f"midlayer.mlp.{name}.weight"] = linear(intermediate, hidden)
    tensors["midlayer.mlp.down_proj.weight"] = linear(hidden, intermediate)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "draft_vocab_size": drafts,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config["rms_norm_eps"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    if layers is not None:
        ids = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        settings |= ids  # vLLM's key; the nested one gives vLLM the number of states
        settings["eagle_config"] = ids | ({"norm_before_fc": True} if norm_before_fc else {})
    (directory / "config.json").write_text(json.dumps(settings | form | changed, indent=2))
    return directory


def _llama(
    config: dict[str, Any], heads: int | None, kv_heads: int | None
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The attention's tensors, and what config.json says of it."""
    hidden = config["hidden_size"]
    heads = heads or hidden // HEAD_DIM
    kv_heads = kv_heads or heads
    tensors = {name: linear(kv_heads * HEAD_DIM, 2 * hidden) for name in ("k_proj", "v_proj")}
    tensors["q_proj"] = linear(heads * HEAD_DIM, 2 * hidden)
    return tensors | {"o_proj": linear(hidden, heads * HEAD_DIM)}, {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
    }


def _mla(config: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    hidden, heads, q_rank, rank = (
        config[name]
        for name in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    )
    nope, rope, value = (
        config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    tensors = {
        "q_a_proj": linear(q_rank, 2 * hidden),
        "q_a_layernorm": norm(q_rank),
        "q_b_proj": linear(heads * (nope + rope), q_rank),
        "kv_a_proj_with_mqa": linear(rank + rope, 2 * hidden),
        "kv_a_layernorm": norm(rank),
        "kv_b_proj": linear(heads * (nope + value), rank),
        "o_proj": linear(hidden, heads * value),
    }
    return tensors, {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "first_k_dense_replace": 1,
    }
