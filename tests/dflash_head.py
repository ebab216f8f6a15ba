"""A random DFlash or DSpark head for a target, in the published layout.

    write_dflash_head(nano_r1, tmp_path / "head", layers=[2, 8, 13])
    write_dspark_head(nano_r1, tmp_path / "head", rank=16)

Names as in the checkpoints of the authors and in vLLM's qwen3_dflash.py and qwen3_dspark.py, with
rows of its own over a draft vocabulary: every second token of the first half of the target's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.eagle3_head import HEAD_DIM, linear, norm
from tests.tiny import edit_tensors


def write_dflash_head(
    target: Path,
    directory: Path,
    seed: int = 0,
    layers: Sequence[int] = (1, 2),
    heads: int | None = None,
    kv_heads: int | None = None,
    mask_token: int = 2,
    section: dict[str, Any] | None = None,
    **changed: Any,
) -> Path:
    """Writes the head and returns its directory.

    `layers` are counted as EAGLE-3 counts them. `section` adds keys to `dflash_config`, `changed`
    replace keys of config.json.
    """
    torch.manual_seed(seed)
    config = json.loads((target / "config.json").read_text())
    hidden, vocab, inner = (
        config[key] for key in ("hidden_size", "vocab_size", "intermediate_size")
    )
    heads = heads or hidden // HEAD_DIM
    kv_heads = kv_heads or heads
    drafts = vocab // 4

    layer = {
        "input_layernorm": norm(hidden),
        "post_attention_layernorm": norm(hidden),
        "self_attn.q_proj": linear(heads * HEAD_DIM, hidden),
        "self_attn.k_proj": linear(kv_heads * HEAD_DIM, hidden),
        "self_attn.v_proj": linear(kv_heads * HEAD_DIM, hidden),
        "self_attn.o_proj": linear(hidden, heads * HEAD_DIM),
        "self_attn.q_norm": norm(HEAD_DIM),
        "self_attn.k_norm": norm(HEAD_DIM),
        "mlp.gate_proj": linear(inner, hidden),
        "mlp.up_proj": linear(inner, hidden),
        "mlp.down_proj": linear(hidden, inner),
    }
    tensors = {
        "fc.weight": linear(hidden, len(layers) * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
        "lm_head.weight": linear(drafts, hidden),
        "d2t": torch.arange(drafts),  # draft token i is the target's 2 i
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, 2 * torch.arange(drafts), True),
        **{f"layers.0.{name}.weight": tensor for name, tensor in layer.items()},
    }
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "draft_vocab_size": drafts,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": config["rms_norm_eps"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "dflash_config": {
            "mask_token_id": mask_token,
            "target_layer_ids": [index - 1 for index in layers],
        }
        | (section or {}),
    }
    (directory / "config.json").write_text(json.dumps(settings | changed, indent=2))
    return directory


def write_dspark_head(
    target: Path, directory: Path, seed: int = 0, rank: int = 16, changed: Any = None, **block: Any
) -> Path:
    """As `write_dflash_head`, to which `block` goes, with biases as large as the block's logits.

    All keys of config.json are at the top. `changed` replace some; None removes one.
    """
    write_dflash_head(target, directory, seed, **block)
    config = json.loads((directory / "config.json").read_text())
    config |= config.pop("dflash_config") | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    config |= changed or {}
    config = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    width = config["hidden_size"] + rank
    drafts = config["vocab_size"] // 4
    heads = {
        "markov_head.markov_w1.weight": torch.randn(config["vocab_size"], rank),
        "markov_head.markov_w2.weight": torch.randn(drafts, rank) / rank**0.5,
        "confidence_head.proj.weight": torch.randn(1, width) / width**0.5,
        "confidence_head.proj.bias": torch.randn(1),
    }
    new = {name: tensor.bfloat16() for name, tensor in heads.items()}
    return edit_tensors(directory, lambda tensors: tensors.update(new))
