"""Targets of each architecture: their ends against transformers, and refusals from config.json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.features.engine_checks import norm_and_layers
from outrider.pipeline.preflight import check_target_and_base
from outrider.speculators.base import kind_and_base
from outrider.speculators.checkpoints.layout import read_layout, read_target_config
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.eagle3.shape import spare_token
from tests.fp8_target import QUANTIZATION
from tests.published_configs import AWQ, FP8_PER_TENSOR, NVFP4, W4A16
from tests.tiny import TINY, tiny_glm, write_tiny_target
from tests.tiny_decoders import DECODERS, VOCAB, write_tiny_decoder


@pytest.mark.parametrize("architecture", DECODERS)
def test_the_ends_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    target = write_tiny_decoder(architecture, tmp_path / "target")
    assert read_json(target / "config.json")["architectures"] == [architecture]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    token_ids = torch.randint(VOCAB, (1, 24))
    before = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    with torch.no_grad():
        out = model(token_ids, output_hidden_states=True)
    ends = load_target_ends(target)
    final = out.hidden_states[-1]
    torch.testing.assert_close(ends.logits(final), out.logits)
    torch.testing.assert_close(ends.embed(token_ids), out.hidden_states[0])
    norm, layers = norm_and_layers(target)
    assert layers == 4
    torch.testing.assert_close(norm(before[0]), final)


def test_ends_of_a_target_in_another_quantization_are_read_unless_quantized(tmp_path: Path) -> None:
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target")
    config = read_json(target / "config.json")
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (target / "config.json").write_text(json.dumps(config))
    assert load_target_ends(target).lm_head_VH.shape == (VOCAB, 64)
    tensors = load_file(target / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(OutriderError, match=r"lm_head\.weight is torch\.int8.*not quantized"):
        load_target_ends(target)


@pytest.mark.parametrize("quantization", [AWQ, W4A16, NVFP4, FP8_PER_TENSOR])
def test_heads_are_trained_for_a_deepseek_in_any_quantization(
    quantization: dict[str, Any], tmp_path: Path
) -> None:
    """Its embedding and head are in bf16; its MTP layer would be misread."""
    target = write_tiny_target(tmp_path / "target")
    before = load_target_ends(target)
    config = read_json(target / "config.json") | {"quantization_config": quantization}
    (target / "config.json").write_text(json.dumps(config))
    check_target_and_base(target, SpeculatorConfig(kind="eagle3"))
    assert torch.equal(load_target_ends(target).lm_head_VH, before.lm_head_VH)
    assert kind_and_base(target) == ("eagle3", "ngram")
    with pytest.raises(
        OutriderError, match=r"read unquantized or in DeepSeek's FP8 only .*eagle3$"
    ):
        check_target_and_base(target, SpeculatorConfig())


def test_a_quantization_in_a_file_of_its_own_is_read_as_in_vllm(tmp_path: Path) -> None:
    """Model-Optimizer before 0.31, such as nvidia/DeepSeek-R1-FP4."""
    target = write_tiny_target(tmp_path / "target")
    section = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    file = {"producer": {"name": "modelopt"}, "quantization": section}
    (target / "hf_quant_config.json").write_text(json.dumps(file))
    assert read_target_config(target)["quantization_config"]["quant_algo"] == "NVFP4"
    assert kind_and_base(target) == ("eagle3", "ngram")
    check_target_and_base(target, SpeculatorConfig(kind="eagle3"))
    with pytest.raises(OutriderError, match=r"quantization_config has .*modelopt"):
        check_target_and_base(target, SpeculatorConfig())
    config = read_json(target / "config.json") | {"quantization_config": QUANTIZATION}
    (target / "config.json").write_text(json.dumps(config))
    assert read_target_config(target)["quantization_config"] == QUANTIZATION  # takes precedence


@pytest.mark.parametrize("names", [("weight_packed", "weight_scale"), ("qweight", "qzeros")])
def test_a_packed_head_is_refused_in_preflight(names: tuple[str, ...], tmp_path: Path) -> None:
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target")
    tensors = load_file(target / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors |= {f"lm_head.{name}": torch.zeros(4, dtype=torch.int32) for name in names}
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(OutriderError, match=rf"lm_head is quantized \(lm_head\.{names[0]}"):
        check_target_and_base(target, SpeculatorConfig(kind="eagle3"))


@pytest.mark.parametrize(
    ("ends", "padding", "expected"),
    [([], -1, 0), ([], None, 0), ([5, 6], -1, 5), (7, 3, 3), (7, VOCAB, 7), (None, None, 0)],
)
def test_a_mask_token_is_a_token_of_the_target(ends: Any, padding: Any, expected: int) -> None:
    config = {"vocab_size": VOCAB, "eos_token_id": ends, "pad_token_id": padding}
    assert spare_token(config) == expected


@pytest.mark.parametrize("kind", ["eagle3", "p_eagle", "dflash"])
@pytest.mark.parametrize("architecture", DECODERS)
def test_heads_can_be_trained_for_every_target_and_mtp_for_none(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    target = write_tiny_decoder(architecture, tmp_path / "target")
    trainable_kind(kind).check_target(target, None, config_only=False)
    with pytest.raises(OutriderError, match=r"no MTP layer.* speculator\.kind: eagle3"):
        trainable_kind("mtp").check_target(target, None, config_only=True)


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("DeepseekV32ForCausalLM", "nearest supported target: DeepseekV3ForCausalLM"),
        ("GPT2LMHeadModel", "no target of this family is supported"),
        ("Glm4MoeLiteForCausalLM", "nearest supported target: Glm4MoeForCausalLM"),
    ],
)
@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_others_are_refused_from_config_json(
    architecture: str, why: str, kind: str, tmp_path: Path
) -> None:
    config = {"architectures": [architecture], "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = rf"config\.json: architectures = {architecture}: .*{re.escape(why)}"
    with pytest.raises(OutriderError, match=expected):
        trainable_kind(kind).check_target(tmp_path, None, config_only=True)
    with pytest.raises(OutriderError, match=expected):
        read_layout(tmp_path)


def test_a_config_without_an_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": null, "model_type": "llama"}')
    with pytest.raises(OutriderError, match=r"no architectures, .*copy the model's original"):
        read_layout(tmp_path)


@pytest.mark.parametrize("architecture", TINY)
def test_the_layer_of_a_target_is_trained_unless_its_positions_are_scaled(
    architecture: str, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    kind = trainable_kind("mtp")
    write_tiny_target(target, config=TINY[architecture]())
    kind.check_target(target, None, config_only=False)
    config = read_json(target / "config.json")
    del config["rope_parameters"]
    scaled = config | {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (target / "config.json").write_text(json.dumps(scaled))
    with pytest.raises(OutriderError, match=r"rope_type = linear: .* rope_type default.* only"):
        kind.check_target(target, None, config_only=True)
    del config["num_attention_heads"]
    with pytest.raises(OutriderError, match=r"no num_attention_heads, which the shape"):
        kind.build(config, config, target / "config.json")


@pytest.mark.parametrize("kind", ["eagle3", "p_eagle", "dflash"])
def test_heads_are_refused_where_vllm_returns_no_states(kind: str, tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target", config=tiny_glm())
    with pytest.raises(OutriderError, match=r"does not return the states.*kind: mtp"):
        trainable_kind(kind).check_target(target, None, config_only=True)


def test_a_layer_of_another_architecture_does_not_belong_to_a_target_without_one(
    tmp_path: Path,
) -> None:
    layer = write_tiny_target(tmp_path / "glm", config=tiny_glm())
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target")
    with pytest.raises(OutriderError, match="the speculator belongs to another model"):
        trainable_kind("mtp").check(layer, read_layout(target))
