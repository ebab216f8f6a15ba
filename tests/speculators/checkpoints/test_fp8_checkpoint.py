"""FP8 checkpoints: read by DeepSeek's rule, written in the target's precision, bytes kept."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.fp8 import quantize
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds import target_tensors
from outrider.speculators.kinds.mtp.check import layer_names, layer_prefix
from outrider.speculators.kinds.mtp.checkpoint import checkpoint_names, load_mtp
from tests.fp8_target import LINEAR, spread, write_fp8_copy
from tests.tiny import LAYERS, edit_tensors, save_drafter, write_tiny_target

MTP = f"model.layers.{LAYERS}."
SHARED = {MTP + "embed_tokens.weight", MTP + "shared_head.head.weight"}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module", params=["tiny", "nano_r1"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano R1's sides are up to 640 and not multiples of 128, the tiny target's all below it."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny = request.param == "tiny"
    source = write_tiny_target(folder / "source") if tiny else request.getfixturevalue("nano_r1")
    return write_fp8_copy(source, folder / "target")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_fp8_copy(
        write_tiny_target(tmp_path / "source", layers_in_shards=True), tmp_path / "sharded"
    )


def mtp_tensors(directory: Path) -> dict[str, torch.Tensor]:
    layers = json.loads((directory / "config.json").read_text())["num_hidden_layers"]
    prefix = f"model.layers.{layers}."
    return {
        k: v for k, v in load_file(directory / "model.safetensors").items() if k.startswith(prefix)
    }


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_weights_are_dequantized(target: Path) -> None:
    stored, prefix = mtp_tensors(target), layer_prefix(read_layout(target).config)
    quantized = [name for name in stored if LINEAR.match(name)]
    assert any("experts.3.down_proj" in name for name in quantized)
    for dtype in (torch.float32, torch.bfloat16):
        views = checkpoint_names(load_mtp(target, dtype).state_dict())
        for name in quantized:
            scale = spread(stored[name + "_scale_inv"], stored[name].shape)
            assert torch.equal(
                views[name.removeprefix(prefix)], (stored[name].float() * scale).to(dtype)
            ), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_round_trip_is_byte_identical(target: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    save_drafter(load_mtp(target, dtype), target, tmp_path / "speculator")
    written = load_file(tmp_path / "speculator" / "model.safetensors")
    original = mtp_tensors(target)
    assert set(written) == set(original) - {
        name for name in original if name.endswith(("embed_tokens.weight", "head.weight"))
    }
    for name, tensor in written.items():
        assert same_bytes(tensor, original[name]), name
    # The copy's scales are not ours: had a tensor been quantized again, its bytes would differ.
    name = next(name for name in original if LINEAR.match(name))
    weight = original[name].float() * spread(original[name + "_scale_inv"], original[name].shape)
    assert not same_bytes(quantize(weight, (128, 128))[0], original[name])


def test_what_changed_is_quantized_and_read_back_as_it_will_be_served(
    target: Path, tmp_path: Path
) -> None:
    speculator, prefix = load_mtp(target), layer_prefix(read_layout(target).config)
    touched = {"mlp.experts.1.up_proj.weight", "self_attn.o_proj.weight"}
    whole = {"eh_proj.weight", "mlp.gate.weight", "hnorm.weight", "shared_head.norm.weight"}
    views = checkpoint_names(speculator.state_dict())
    with torch.no_grad():
        for suffix in touched | whole:
            views[suffix].add_(torch.randn_like(views[suffix]) * 0.01)
    save_drafter(speculator, target, tmp_path / "speculator")
    written, original = (
        load_file(tmp_path / "speculator" / "model.safetensors"),
        mtp_tensors(target),
    )
    for name, tensor in written.items():
        suffix = name.removeprefix(prefix)
        if suffix in whole:
            assert same_bytes(tensor, views[suffix].detach().to(original[name].dtype))
            assert name + "_scale_inv" not in written
        elif suffix.removesuffix("_scale_inv") not in touched:
            assert same_bytes(tensor, original[name]), name
    again = checkpoint_names(load_mtp(tmp_path / "speculator").state_dict())
    for suffix in touched:
        value, scale = quantize(views[suffix].detach(), (128, 128))
        assert same_bytes(written[prefix + suffix], value)
        assert same_bytes(written[prefix + suffix + "_scale_inv"], scale)
        assert torch.equal(again[suffix], value.float() * spread(scale, value.shape))
        assert not torch.equal(again[suffix], views[suffix])


def test_a_changed_block_is_written_with_power_of_two_scales(tmp_path: Path) -> None:
    source = write_tiny_target(tmp_path / "source")
    target = write_fp8_copy(source, tmp_path / "v3_1", "ue8m0")
    speculator = load_mtp(target)
    changed = speculator.block.self_attn.o_proj.weight.data.add_(0.01)
    save_drafter(speculator, target, tmp_path / "speculator")
    written = load_file(tmp_path / "speculator" / "model.safetensors")
    name = MTP + "self_attn.o_proj.weight"
    [[scale]] = written[name + "_scale_inv"].tolist()  # one block
    needed = changed.abs().max().item() / 448
    assert scale == next(2.0**e for e in range(-40, 10) if 2.0**e >= needed)
    assert same_bytes(written[name], (changed / scale).to(torch.float8_e4m3fn))


def test_only_the_shards_that_are_wanted_are_named_and_read(sharded: Path) -> None:
    layout = read_layout(sharded)
    assert layout.files(layer_names(layout)) == [SECOND]
    assert layout.files(target_tensors(layout)) == [FIRST, SECOND]
    wanted = set(target_tensors(layout))
    assert wanted - layer_names(layout) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert not SHARED & wanted and MTP + "self_attn.o_proj.weight_scale_inv" in wanted
    (sharded / FIRST).unlink()
    load_mtp(sharded)
    with pytest.raises(OutriderError, match=rf"{re.escape(FIRST)}: no such file"):
        load_target_ends(sharded)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return write_fp8_copy(write_tiny_target(tmp_path / "source"), tmp_path / "broken")


def test_values_without_scales_are_refused(broken: Path) -> None:
    edit_tensors(broken, lambda tensors: tensors.pop(MTP + "self_attn.o_proj.weight_scale_inv"))
    with pytest.raises(
        OutriderError, match=r"o_proj\.weight is FP8, but there is no .*o_proj\.weight_scale_inv"
    ):
        load_mtp(broken)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_value_that_is_no_number_is_not_loaded(broken: Path, frozen: bool) -> None:
    name = MTP + "mlp.experts.2.up_proj.weight"
    edit_tensors(broken, lambda tensors: tensors[name].view(torch.uint8)[5].fill_(0xFF))
    with pytest.raises(OutriderError, match=r"not a finite number in mlp\.experts\.2\.up_proj"):
        load_mtp(broken, frozen_experts=frozen)
