"""Checkpoints: names and bytes survive a round trip; a target without the layer is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.kind import MTP
from tests.tiny import LAYERS, edit_tensors, save_drafter

PREFIX = f"model.layers.{LAYERS}."


@pytest.fixture
def broken(target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(target, tmp_path / "broken"))


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


def test_a_target_without_mtp_layer(broken: Path) -> None:
    def drop(tensors: dict) -> None:
        for name in [name for name in tensors if name.startswith(PREFIX)]:
            del tensors[name]

    edit_tensors(broken, drop)
    with pytest.raises(OutriderError, match=r"no tensor named model\.layers\.2"):
        MTP().check_target(broken, None, config_only=False)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(OutriderError, match="num_nextn_predict_layers is 0"):
        load_mtp(broken)
