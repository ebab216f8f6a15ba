"""Block FP8: arithmetic against loops over elements and all e4m3 numbers; checkpoints.

Checkpoints are read by DeepSeek's rule, written in the target's precision, bytes kept.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.fp8 import dequantize, quantize, scale_shape
from outrider.speculators.checkpoints.layout import fp8_blocks, read_layout
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds import target_tensors
from outrider.speculators.kinds.mtp.check import layer_prefix, mtp_tensor_names
from outrider.speculators.kinds.mtp.checkpoint import load_mtp, mtp_checkpoint_tensors
from tests.fp8_target import LINEAR, QUANTIZATION, spread, write_fp8_copy
from tests.tiny import LAYERS, edit_tensors, save_drafter, write_tiny_target

BLOCKS = (4, 6)


def e4m3(byte: int) -> float:
    """Sign, four bits of exponent (bias 7), three of mantissa; 0x7f and 0xff are NaN."""
    sign = byte >> 7
    exponent = byte >> 3 & 15
    mantissa = byte & 7
    magnitude = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2 ** (exponent - 7)
    return -magnitude if sign else magnitude


NUMBERS = [e4m3(byte) for byte in range(0x7F)]


def nearest(value: float) -> float:
    """The nearest of the table; of two as near, the one with an even mantissa."""
    best = min(range(0x7F), key=lambda byte: (abs(NUMBERS[byte] - abs(value)), byte & 1))
    return NUMBERS[best] if value >= 0 else -NUMBERS[best]


@pytest.fixture
def weight() -> Tensor:
    """Sides that are not multiples of the block's, very different magnitudes, a block of zeros."""
    torch.manual_seed(0)
    weight = torch.randn(11, 17) * torch.logspace(-6, 4, 11)[:, None]
    weight[4:8, 6:12] = 0
    return weight


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_quantizing_is_the_literal_rule(weight: Tensor, powers_of_two: bool) -> None:
    weight[:4, :6] *= 448 * 2**-5 / weight[:4, :6].abs().max()  # its scale is a power of two
    value, scale = quantize(weight, BLOCKS, powers_of_two)
    assert value.dtype == torch.float8_e4m3fn and value.shape == weight.shape
    assert scale.dtype == torch.float32 and tuple(scale.shape) == scale_shape(
        weight.shape, BLOCKS
    ) == (
        3,
        3,
    )
    for p in range(3):
        for q in range(3):
            block = weight[4 * p : 4 * p + 4, 6 * q : 6 * q + 6]
            expected = block.abs().max() / 448 if block.any() else torch.tensor(1.0)
            if powers_of_two:
                expected = next(
                    torch.tensor(2.0**e) for e in range(-60, 60) if 2.0**e >= float(expected)
                )
            assert scale[p, q] == expected
            for i, j in torch.cartesian_prod(
                torch.arange(len(block)), torch.arange(block.shape[1])
            ).tolist():
                assert float(value[4 * p + i, 6 * q + j]) == nearest(float(block[i, j] / expected))


def test_dequantizing_is_the_literal_rule(weight: Tensor) -> None:
    value, scale = quantize(weight, BLOCKS)
    bytes_OI = value.view(torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        found = dequantize(value, scale, BLOCKS, dtype)
        assert found.dtype == dtype and found.shape == weight.shape
        for i in range(11):
            for j in range(17):
                expected = torch.tensor(e4m3(int(bytes_OI[i, j]))) * scale[i // 4, j // 6]
                assert found[i, j] == expected.to(dtype)


@pytest.mark.parametrize(
    "other",
    [
        {"quant_method": "awq"},
        {"quant_method": "fp8", "weight_block_size": None},
        {"weight_block_size": [128]},
        {"weight_block_size": [128, 0]},
        {"fmt": "e5m2"},
        {"activation_scheme": "static"},
        {"scale_fmt": "e5m3"},
    ],
)
def test_other_quantizations_are_refused(other: dict, tmp_path) -> None:
    path = tmp_path / "config.json"
    assert fp8_blocks({"quantization_config": QUANTIZATION}, path) == (128, 128)
    v3_1 = QUANTIZATION | {"scale_fmt": "ue8m0"}
    assert fp8_blocks({"quantization_config": v3_1}, path) == (128, 128)
    assert fp8_blocks({}, path) is None
    with pytest.raises(
        OutriderError, match=r"config\.json: quantization_config.*weight_block_size \[128, 128\]"
    ):
        fp8_blocks({"quantization_config": QUANTIZATION | other}, path)


MTP = f"model.layers.{LAYERS}."
SHARED = {MTP + "embed_tokens.weight", MTP + "shared_head.head.weight"}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module", params=["tiny", "ue8m0", "nano_r1"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano R1's sides are up to 640 and not multiples of 128, the tiny target's all below it.

    With ue8m0 the scales are powers of two.
    """
    folder = tmp_path_factory.mktemp(request.param)
    name = request.param
    large = name == "nano_r1"
    source = request.getfixturevalue(name) if large else write_tiny_target(folder / "source")
    return write_fp8_copy(source, folder / "target", name if name == "ue8m0" else None)


def mtp_tensors(directory: Path) -> dict[str, torch.Tensor]:
    layers = json.loads((directory / "config.json").read_text())["num_hidden_layers"]
    prefix = f"model.layers.{layers}."
    return {
        k: v for k, v in load_file(directory / "model.safetensors").items() if k.startswith(prefix)
    }


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


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
    speculator = load_mtp(target)
    prefix = layer_prefix(read_layout(target).config)
    touched = {"mlp.experts.1.up_proj.weight", "self_attn.o_proj.weight"}
    whole = {"eh_proj.weight", "mlp.gate.weight", "hnorm.weight", "shared_head.norm.weight"}
    views = mtp_checkpoint_tensors(speculator.state_dict())
    with torch.no_grad():
        for suffix in touched | whole:
            views[suffix].add_(torch.randn_like(views[suffix]) * 0.01)
    save_drafter(speculator, target, tmp_path / "speculator")
    written = load_file(tmp_path / "speculator" / "model.safetensors")
    original = mtp_tensors(target)
    for name, tensor in written.items():
        suffix = name.removeprefix(prefix)
        if suffix in whole:
            assert same_bytes(tensor, views[suffix].detach().to(original[name].dtype))
            assert name + "_scale_inv" not in written
        elif suffix.removesuffix("_scale_inv") not in touched:
            assert same_bytes(tensor, original[name]), name
    again = mtp_checkpoint_tensors(load_mtp(tmp_path / "speculator").state_dict())
    powers_of_two = "scale_fmt" in read_layout(target).config["quantization_config"]
    for suffix in touched:
        value, scale = quantize(views[suffix].detach(), (128, 128), powers_of_two)
        assert same_bytes(written[prefix + suffix], value)
        assert same_bytes(written[prefix + suffix + "_scale_inv"], scale)
        assert torch.equal(again[suffix], value.float() * spread(scale, value.shape))
        assert not torch.equal(again[suffix], views[suffix])


def test_only_the_shards_that_are_wanted_are_named_and_read(tmp_path: Path) -> None:
    source = write_tiny_target(tmp_path / "source", layers_in_shards=True)
    sharded = write_fp8_copy(source, tmp_path / "sharded")
    layout = read_layout(sharded)
    assert layout.files(mtp_tensor_names(layout)) == [SECOND]
    assert layout.files(target_tensors(layout)) == [FIRST, SECOND]
    wanted = set(target_tensors(layout))
    assert wanted - mtp_tensor_names(layout) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert not SHARED & wanted and MTP + "self_attn.o_proj.weight_scale_inv" in wanted
    (sharded / FIRST).unlink()
    load_mtp(sharded)
    with pytest.raises(OutriderError, match=rf"{re.escape(FIRST)}: no such file"):
        load_target_ends(sharded)


SCALE = MTP + "self_attn.o_proj.weight_scale_inv"
VALUE = MTP + "mlp.experts.2.up_proj.weight"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop(SCALE),
            r"o_proj\.weight is FP8, but there is no .*o_proj\.weight_scale_inv",
        ),
        (
            lambda t: t[VALUE].view(torch.uint8)[5].fill_(0xFF),
            r"not a finite number in mlp\.experts\.2\.up_proj",
        ),
    ],
    ids=["no scale", "no number"],
)
def test_a_broken_checkpoint_is_not_loaded(
    change: Callable[[dict[str, Tensor]], object], message: str, frozen: bool, tmp_path: Path
) -> None:
    broken = write_fp8_copy(write_tiny_target(tmp_path / "source"), tmp_path / "broken")
    edit_tensors(broken, change)
    with pytest.raises(OutriderError, match=message):
        load_mtp(broken, frozen_experts=frozen)
