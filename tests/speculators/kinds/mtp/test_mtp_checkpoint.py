"""Checkpoints: names and bytes survive a round trip; a target without the layer is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from vllm.transformers_utils.config import get_config

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.kinds import check_speculator
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.kind import MTP
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, edit_tensors, save_drafter

PREFIX = f"model.layers.{LAYERS}."


def test_round_trip_is_byte_identical(each_target: Path, tmp_path: Path) -> None:
    save_drafter(load_mtp(each_target), each_target, tmp_path / "speculator")
    original = load_file(each_target / "model.safetensors")
    written = load_file(tmp_path / "speculator" / "model.safetensors")
    shared = {PREFIX + "embed_tokens.weight", PREFIX + "shared_head.head.weight"}
    assert set(written) == {name for name in original if name.startswith(PREFIX)} - shared
    for name, tensor in written.items():
        assert tensor.dtype == original[name].dtype
        assert torch.equal(tensor.view(torch.uint8), original[name].view(torch.uint8)), name
    assert json.loads((tmp_path / "speculator" / "config.json").read_text()) == json.loads(
        (each_target / "config.json").read_text()
    )


def test_half_precision_keeps_the_routing_bias(each_target: Path) -> None:
    speculator = load_mtp(each_target, dtype=torch.bfloat16)
    stored = load_file(each_target / "model.safetensors")
    bias = stored[PREFIX + "mlp.gate.e_score_correction_bias"].float()
    assert torch.equal(speculator.block.mlp.gate.e_score_correction_bias, bias)
    assert speculator.eh_proj.weight.dtype == torch.bfloat16


def test_what_training_changed_is_written_in_the_checkpoint_s_layout(
    each_target: Path, tmp_path: Path
) -> None:
    speculator = load_mtp(each_target)
    with torch.no_grad():
        for weight in speculator.parameters():
            weight.mul_(1.5)
    save_drafter(speculator, each_target, tmp_path / "speculator")
    check_speculator(tmp_path / "speculator", each_target)
    original = load_file(each_target / "model.safetensors")
    for name, tensor in load_file(tmp_path / "speculator" / "model.safetensors").items():
        trained = not name.endswith("e_score_correction_bias")
        expected = original[name].float() * (1.5 if trained else 1)
        assert torch.equal(tensor, expected.to(original[name].dtype)), name


@pytest.fixture
def broken(each_target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(each_target, tmp_path / "broken"))


def test_a_target_without_mtp_layer(broken: Path) -> None:
    def drop(tensors: dict) -> None:
        for name in [name for name in tensors if name.startswith(PREFIX)]:
            del tensors[name]

    edit_tensors(broken, drop)
    with pytest.raises(OutriderError, match=r"no tensor named model\.layers\.2"):
        MTP().check_target(broken, None, config_only=False)
    config = json.loads((broken / "config.json").read_text())
    for layers in (0, 2):
        changed = config | {"num_nextn_predict_layers": layers}
        (broken / "config.json").write_text(json.dumps(changed))
        with pytest.raises(OutriderError, match=f"num_nextn_predict_layers is {layers}"):
            MTP().check_target(broken, None, config_only=True)


@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "fp8"])
def test_sglang_s_draft_model_is_one_layer_with_the_layer_s_bytes(
    quantized: bool, each_target: Path, tmp_path: Path
) -> None:
    plain = write_fp8_copy(each_target, tmp_path / "fp8") if quantized else each_target
    MTP().write_other_formats(plain, plain, "tiny", 3, tmp_path / "twins")
    nextn = tmp_path / "twins" / "sglang_nextn"
    config, of_target = (read_json(path / "config.json") for path in (nextn, plain))
    assert config.pop("architectures") == [of_target.pop("architectures")[0] + "NextN"]
    assert (config.pop("num_hidden_layers"), of_target.pop("num_hidden_layers")) == (1, LAYERS)
    assert config == of_target
    found = load_file(nextn / "model.safetensors")
    expected = {
        "model.layers.0." + name.removeprefix(PREFIX): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
        if name.startswith(PREFIX)
    }
    # SGLang takes both from the target.
    for shared in ("embed_tokens.weight", "shared_head.head.weight"):
        del expected["model.layers.0." + shared]
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name


def test_engines_that_trust_remote_code_need_no_file_that_is_not_written(
    target: Path, tmp_path: Path
) -> None:
    """DeepSeek-R1's config.json names Python files, and many commands have --trust-remote-code."""
    named = shutil.copytree(target, tmp_path / "target")
    config = read_json(named / "config.json")
    config["auto_map"] = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    (named / "config.json").write_text(json.dumps(config))
    save_drafter(load_mtp(named), named, tmp_path / "bundle")
    MTP().write_other_formats(tmp_path / "bundle", named, "tiny", 3, tmp_path / "bundle")
    for directory in (tmp_path / "bundle", tmp_path / "bundle" / "sglang_nextn"):
        read = get_config(directory, trust_remote_code=True)
        assert read.num_nextn_predict_layers == 1
