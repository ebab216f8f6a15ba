"""Block FP8 against loops over elements and a table of all 256 e4m3 numbers."""

import pytest
import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.fp8 import dequantize, grid, quantize
from outrider.speculators.checkpoints.layout import fp8_blocks
from tests.fp8_target import QUANTIZATION

BLOCKS = (4, 6)


def e4m3(byte: int) -> float:
    """Sign, four bits of exponent (bias 7), three of mantissa; 0x7f and 0xff are NaN."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
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
    assert scale.dtype == torch.float32 and tuple(scale.shape) == grid(weight.shape, BLOCKS) == (
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
