"""Checkpoints: names and bytes survive a round trip; a target without the layer is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.kind import MTP
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, edit_tensors, save_drafter

PREFIX = f"model.layers.{LAYERS}."


def test_round_trip_is_byte_identical(target: Path, tmp_path: Path) -> None:
    save_drafter(load_mtp(target), target, tmp_path / "speculator")
    original = load_file(target / "model.safetensors")
    written = load_file(tmp_path / "speculator" / "model.safetensors")
    shared = {PREFIX + "embed_tokens.weight", PREFIX + "shared_head.head.weight"}
    assert set(written) == {name for name in original if name.startswith(PREFIX)} - shared
    for name, tensor in written.items():
        assert tensor.dtype == original[name].dtype
        assert torch.equal(tensor.view(torch.uint8), original[name].view(torch.uint8)), name
    assert json.loads((tmp_path / "speculator" / "config.json").read_text()) == json.loads(
        (target / "config.json").read_text()
    )


def test_half_precision_keeps_the_routing_bias(target: Path) -> None:
    speculator = load_mtp(target, dtype=torch.bfloat16)
    assert speculator.block.mlp.gate.e_score_correction_bias.dtype == torch.float32
    assert speculator.eh_proj.weight.dtype == torch.bfloat16


def test_a_target_without_mtp_layer(target: Path, tmp_path: Path) -> None:
    broken, names = (
        shutil.copytree(target, tmp_path / "broken"),
        load_file(target / "model.safetensors").keys(),
    )
    own = [name for name in names if name.startswith(PREFIX)]
    edit_tensors(broken, lambda tensors: [tensors.pop(name) for name in own])
    with pytest.raises(OutriderError, match=r"no tensor named model\.layers\.2"):
        MTP().check_target(broken, None, config_only=False)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(OutriderError, match="num_nextn_predict_layers is 0"):
        load_mtp(broken)


@pytest.mark.parametrize("quantized", [False, True], ids=["bf16", "fp8"])
def test_sglang_s_draft_model_is_one_layer_with_the_layer_s_bytes(
    quantized: bool, target: Path, tmp_path: Path
) -> None:
    plain = write_fp8_copy(target, tmp_path / "fp8") if quantized else target
    MTP().write_other_formats(plain, plain, "tiny", 3, tmp_path / "twins")
    nextn = tmp_path / "twins" / "sglang_nextn"
    config, of_target = (read_json(path / "config.json") for path in (nextn, plain))
    assert config.pop("architectures") == ["DeepseekV3ForCausalLMNextN"]
    assert (config.pop("num_hidden_layers"), of_target.pop("num_hidden_layers")) == (1, LAYERS)
    of_target.pop("architectures")
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
