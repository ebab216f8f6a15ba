"""Every exported tensor has a place in SGLang's modules, and every parameter has a tensor.

A table for `make test`, written down from SGLang 0.5.23: models/deepseek_nextn.py,
glm4_moe_nextn.py, llama_eagle3.py, and deepseek_common/deepseek_weight_loader.py
(`do_load_weights`, `_initialize_nextn_conf`). SGLang's own loader reads the same exports in
test_sglang.py (slow). Its EAGLE-3 loader skips names that it does not know without a word. The rule
for layer ids is in eagle3/test_layer_ids.py.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.common.files import read_json
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.mtp.kind import MTP
from outrider.speculators.kinds.protocol import Origin
from tests.fp8_target import BLOCK, write_fp8_copy
from tests.tiny import VOCAB

Shapes = dict[str, tuple[int, ...]]


def gated(name: str, hidden: int, inner: int) -> Shapes:
    """A gated MLP's pieces of `gate_up_proj`, and `down_proj`."""
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }


def latent_attention(config: dict[str, Any]) -> Shapes:
    """DeepseekV2AttentionMLA; the first two are fused when loaded."""
    heads = config["num_attention_heads"]
    nope, rope, value = (config[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
    hidden, q_rank, kv_rank = (
        config[name] for name in ("hidden_size", "q_lora_rank", "kv_lora_rank")
    )
    return {
        "q_a_proj.weight": (q_rank, hidden),
        "kv_a_proj_with_mqa.weight": (kv_rank + rope, hidden),
        "q_a_layernorm.weight": (q_rank,),
        "kv_a_layernorm.weight": (kv_rank,),
        "q_b_proj.weight": (heads * (nope + rope), q_rank),
        "kv_b_proj.weight": (heads * (nope + value), kv_rank),
        "o_proj.weight": (hidden, heads * value),
    }


def grouped_attention(config: dict[str, Any]) -> Shapes:
    """Glm4MoeAttention."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    heads["v"] = heads["k"]
    shapes: Shapes = {"o_proj.weight": (hidden, heads["q"] * dim)}
    for name, count in heads.items():
        shapes[f"{name}_proj.weight"] = (count * dim, hidden)
        if config["attention_bias"]:
            shapes[f"{name}_proj.bias"] = (count * dim,)
    if config["use_qk_norm"]:
        shapes |= {"q_norm.weight": (dim,), "k_norm.weight": (dim,)}
    return shapes


def nextn_parameters(config: dict[str, Any]) -> Shapes:
    """The NextN module's parameters, without the target's embedding and head.

    Its layer always has experts (`is_nextn`).
    """
    hidden = config["hidden_size"]
    experts = config["n_routed_experts"]
    inner = config["moe_intermediate_size"]
    attention = latent_attention(config) if "kv_lora_rank" in config else grouped_attention(config)
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **{f"self_attn.{name}": shape for name, shape in attention.items()},
        "mlp.gate.weight": (experts, hidden),
        "mlp.gate.e_score_correction_bias": (experts,),
        **gated("mlp.shared_experts", hidden, inner * config["n_shared_experts"]),
    }
    for expert in range(experts):
        layer |= gated(f"mlp.experts.{expert}", hidden, inner)
    return {
        "model.enorm.weight": (hidden,),
        "model.hnorm.weight": (hidden,),
        "model.shared_head.norm.weight": (hidden,),
        "model.eh_proj.weight": (hidden, 2 * hidden),
        **{f"model.decoder.{name}": shape for name, shape in layer.items()},
    }


def with_scales(parameters: Shapes) -> Shapes:
    """The parameters with FP8 blocks: a scale for each linear layer but the router and eh_proj."""
    linear = [
        name
        for name in parameters
        if "decoder" in name and "_proj" in name and name.endswith(".weight")
    ]
    return parameters | {
        f"{name}_scale_inv": tuple(math.ceil(size / BLOCK) for size in parameters[name])
        for name in linear
    }


OF_NEXTN = ("shared_head.norm", "eh_proj", "enorm", "hnorm")
"""`nextn_spec_weight_names`: parts of names that are outside of the decoder layer."""


def nextn_names(config: dict[str, Any], tensors: dict[str, Tensor]) -> Iterator[str]:
    """`do_load_weights`: the parameter, or its piece, that each tensor fills."""
    assert config["num_nextn_predict_layers"] == 1
    layer = 0 if config["num_hidden_layers"] == 1 else config["num_hidden_layers"]
    prefix = f"model.layers.{layer}"
    for name in tensors:
        assert name.startswith(prefix), f"{name} is skipped"
        outside = any(part in name for part in OF_NEXTN)
        yield name.replace(prefix, "model" if outside else "model.decoder")


@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "fp8"])
def test_the_nextn_layer_fills_the_module(
    quantized: bool, each_target: Path, tmp_path: Path
) -> None:
    plain = write_fp8_copy(each_target, tmp_path / "fp8") if quantized else each_target
    MTP().write_other_formats(plain, plain, "tiny", 3, tmp_path / "twins")
    folder = tmp_path / "twins" / "sglang_nextn"
    config = read_json(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    parameters = nextn_parameters(config)
    if quantized:
        parameters = with_scales(parameters)
        assert config["quantization_config"]["weight_block_size"] == [BLOCK, BLOCK]
    names = nextn_names(config, tensors)
    filled = {
        name: tuple(tensor.shape) for name, tensor in zip(names, tensors.values(), strict=True)
    }
    assert filled == parameters
    assert config["architectures"][0] in ("DeepseekV3ForCausalLMNextN", "Glm4MoeForCausalLMNextN")


def eagle3_parameters(config: dict[str, Any]) -> Shapes:
    """LlamaForCausalLMEagle3's parameters, without the target's embedding."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    states = config.get("num_aux_hidden_states") or 3
    target_hidden = config.get("target_hidden_size", hidden)
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    heads["v"] = heads["k"]
    layer: Shapes = {
        f"self_attn.{name}_proj.weight": (count * dim, 2 * hidden) for name, count in heads.items()
    }
    layer["self_attn.o_proj.weight"] = (hidden, heads["q"] * dim)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        layer[f"{name}.weight"] = (hidden,)
    layer |= gated("mlp", hidden, config["intermediate_size"])
    parameters: Shapes = {
        "model.fc.weight": (hidden, states * target_hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        **{f"model.layers.0.{name}": shape for name, shape in layer.items()},
    }
    if config.get("fc_norm") or config.get("use_aux_norm"):
        parameters |= {f"model.fc_norm.{n}.weight": (target_hidden,) for n in range(states)}
    return parameters


def eagle3_name(name: str, parameters: Shapes) -> str:
    """`load_weights`, with `legacy_name_map`: the parameter, or its piece, that a tensor fills."""
    name = name.replace("midlayer", "layers.0")
    return name if name in parameters else f"model.{name}"


@pytest.mark.parametrize("vocabulary", ["all", 5])
@pytest.mark.parametrize("layers", [(1, 2), (2,)], ids=["two_states", "one_state"])
def test_a_new_eagle3_head_fills_the_module(
    vocabulary: Any, layers: tuple[int, ...], target: Path, tmp_path: Path
) -> None:
    kind = Eagle3()
    counts_V = torch.zeros(VOCAB, dtype=torch.long)
    counts_V[[5, 3, 40, 41, 42]] = torch.tensor([9, 7, 5, 3, 1])
    head_config = HeadConfig(draft_vocabulary=vocabulary, layers=layers, layer_type="llama")
    origin = Origin(target, None, head_config, lambda: counts_V[None])
    head = kind.start(origin, torch.float32, "cpu", seed=1)
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, tmp_path / "head")
    config = read_json(tmp_path / "head" / "config.json")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    # SGLang has no such order of norms, and would ignore the key.
    assert not config.get("norm_before_residual")
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    d2t_D = tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    parameters = eagle3_parameters(config)
    filled = {
        eagle3_name(name, parameters): tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert filled == parameters
    if d2t_D is None:
        assert vocabulary == "all"
    else:  # `hot_token_id`: the target's token of each row
        hot_ids = d2t_D + torch.arange(len(d2t_D))
        assert hot_ids.tolist() == [3, 5, 40, 41, 42]
