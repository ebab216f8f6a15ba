"""The draft model for SGLang, by the rules with which SGLang names and fills its parameters.

The rules are those of sgl-project/sglang, commit 29bd4e85 (2026),
models/deepseek_common/deepseek_weight_loader.py, for a draft model (`is_nextn`), and of commit
0114f9c9 (2025), models/deepseek_nextn.py.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.files import read_json
from outrider.speculators.kinds.mtp.kind import MTP
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, write_tiny_target

OF_NEXTN = ("shared_head.norm", "eh_proj", "enorm", "hnorm")
"""Parts of a name that belong to the model; every other tensor belongs to its one layer."""


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The plain directory and the draft model's."""
    folder = tmp_path_factory.mktemp("nextn")
    target = write_tiny_target(folder / "target")
    if request.param == "fp8":
        target = write_fp8_copy(target, folder / "fp8")
    MTP().write_other_formats(target, target, "tiny", 3, folder / "twins")
    return target, folder / "twins" / "sglang_nextn"


def layer_of(config: dict[str, Any]) -> int:
    """The layer that SGLang looks for: 0 for a model of one layer, else after the last."""
    assert config["num_nextn_predict_layers"] == 1
    return 0 if config["num_hidden_layers"] == 1 else config["num_hidden_layers"]


def parameter(name: str, layer: int, experts: int, fused: bool) -> tuple[str, str] | None:
    """The parameter that a tensor fills and which part of it; None where it is passed over."""
    prefix = f"model.layers.{layer}"
    if fused:  # the shared expert becomes one more routed expert
        name = name.replace("mlp.shared_experts", f"mlp.experts.{experts}")
    if not name.startswith(prefix) or "shared_head.head" in name or "embed_tokens" in name:
        return None
    own = any(part in name for part in OF_NEXTN)
    name = name.replace(prefix, "model" if own else "model.decoder")
    for expert in range(experts + fused):
        for tensor, into in (("gate_proj", "w13_"), ("up_proj", "w13_"), ("down_proj", "w2_")):
            stored = f"experts.{expert}.{tensor}."
            if stored in name and "shared_experts" not in name:
                return name.replace(stored, f"experts.{into}"), f"{expert} {tensor}"
    for projection in ("gate_proj", "up_proj"):
        if projection in name:
            return name.replace(projection, "gate_up_proj"), projection
    for projection in ("q_a_proj", "kv_a_proj_with_mqa"):
        if projection in name:
            return name.replace(projection, "fused_qkv_a_proj_with_mqa"), projection
    return name, "whole"


def parameters(config: dict[str, Any], fused: bool, scaled: bool) -> Counter[str]:
    """Parameters of SGLang's model that must be filled, and from how many tensors each."""
    experts = config["n_routed_experts"] + fused
    linear = {
        "self_attn.fused_qkv_a_proj_with_mqa": 2,
        "self_attn.q_b_proj": 1,
        "self_attn.kv_b_proj": 1,
        "self_attn.o_proj": 1,
        **({} if fused else {"mlp.shared_experts.gate_up_proj": 2}),
        **({} if fused else {"mlp.shared_experts.down_proj": 1}),
    }
    found = Counter({f"model.decoder.{name}.weight": parts for name, parts in linear.items()})
    for name, parts in (("w13_weight", 2 * experts), ("w2_weight", experts)):
        found[f"model.decoder.mlp.experts.{name}"] = parts
    if scaled:
        found |= Counter({f"{name}_scale_inv": parts for name, parts in found.items()})
    norms = ("input_layernorm", "post_attention_layernorm")
    latent = ("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")
    for name in (*norms, *latent, "mlp.gate"):
        found[f"model.decoder.{name}.weight"] = 1
    found["model.decoder.mlp.gate.e_score_correction_bias"] = 1
    for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm"):
        found[f"model.{name}.weight"] = 1
    return found


@pytest.mark.parametrize("fused", [False, True])
def test_every_parameter_is_filled_and_every_tensor_is_read(written: Any, fused: bool) -> None:
    _, nextn = written
    config, stored = read_json(nextn / "config.json"), load_file(nextn / "model.safetensors")
    filled: dict[str, set[str]] = {}
    for name in stored:
        place = parameter(name, layer_of(config), config["n_routed_experts"], fused)
        assert place is not None, f"{name} is passed over"
        assert place[1] not in filled.setdefault(place[0], set()), f"{name} is filled twice"
        filled[place[0]].add(place[1])
    scaled = any(name.endswith("_scale_inv") for name in stored)
    counted = Counter({name: len(parts) for name, parts in filled.items()})
    assert counted == parameters(config, fused, scaled)


def test_it_is_a_model_of_one_layer_with_the_layer_s_bytes(written: Any) -> None:
    plain, nextn = written
    config, of_target = (read_json(path / "config.json") for path in (nextn, plain))
    assert config.pop("architectures") == ["DeepseekV3ForCausalLMNextN"]
    assert (config.pop("num_hidden_layers"), of_target.pop("num_hidden_layers")) == (1, LAYERS)
    of_target.pop("architectures")
    assert config == of_target
    found, layer = load_file(nextn / "model.safetensors"), f"model.layers.{LAYERS}."
    expected = {
        "model.layers.0." + name.removeprefix(layer): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
        if name.startswith(layer)
    }
    # SGLang takes both from the target.
    for shared in ("embed_tokens.weight", "shared_head.head.weight"):
        del expected["model.layers.0." + shared]
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name


def test_newer_versions_read_the_plain_directory_too(written: Any) -> None:
    """Where num_hidden_layers is the target's, the layer after the last one is read."""
    plain, _ = written
    config = read_json(plain / "config.json")
    names = load_file(plain / "model.safetensors").keys()
    read = (parameter(n, layer_of(config), config["n_routed_experts"], False) for n in names)
    assert sum(place is not None for place in read) >= len(parameters(config, False, False))
