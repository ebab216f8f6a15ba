"""DeepSeek's block FP8: e4m3 values with one float32 scale per block.

    value, scale = quantize(weight, (128, 128))
    weight = dequantize(value, scale, (128, 128))

A weight is value * scale. Blocks are usually 128 x 128; blocks at the edges may be partial. A
block's scale, stored in NAME.weight_scale_inv, is its largest magnitude divided by 448, the largest
e4m3 number. DeepSeek-V3.1 rounds scales up to powers of two. Sources: README_WEIGHTS.md and
inference/kernel.py (weight_dequant) of DeepSeek-V3; arXiv:2412.19437, section 3.3.2.

Shapes: O output features, I input features, P = ceil(O / rows) and Q = ceil(I / columns) blocks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
"""The largest e4m3 number, 448."""


def scale_shape(shape: torch.Size | tuple[int, ...], blocks: tuple[int, int]) -> tuple[int, int]:
    """P and Q for a weight of shape [O, I]."""
    return math.ceil(shape[-2] / blocks[0]), math.ceil(shape[-1] / blocks[1])


def quantize(
    weight_OI: Tensor, blocks: tuple[int, int], powers_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns e4m3 values [O, I] and float32 scales [P, Q].

    Values are rounded to nearest, ties to even. A block of zeros has scale 1. With `powers_of_two`
    (`scale_fmt: ue8m0`), scales are rounded up to 2^ceil(log2(scale)), as in DeepSeek-V3.1's
    inference/kernel.py.
    """
    blocked = _blocked(weight_OI.float(), blocks)
    largest_PQ = blocked.abs().amax(dim=(1, 3))
    # Clamp subnormal scales, since dividing by them loses precision; such blocks are near zero.
    scale_PQ = torch.where(
        largest_PQ > 0, (largest_PQ / LARGEST).clamp_min(torch.finfo(torch.float32).tiny), 1.0
    )
    if powers_of_two:
        # frexp is exact, unlike log2; powers of two have mantissa 0.5.
        mantissa_PQ, exponent_PQ = torch.frexp(scale_PQ)
        scale_PQ = torch.ldexp(torch.ones_like(scale_PQ), exponent_PQ - (mantissa_PQ == 0.5).int())
    # A scale that was clamped or rounded may make the quotient exceed 448 by a rounding error.
    value = (blocked / scale_PQ[:, None, :, None]).clamp(-LARGEST, LARGEST)
    return _flat(value, weight_OI.shape).to(FP8), scale_PQ


def dequantize(
    value_OI: Tensor, scale_PQ: Tensor, blocks: tuple[int, int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weight [O, I], multiplied in float32 and rounded once."""
    # In float32, as in DeepSeek's weight_dequant (inference/kernel.py); bf16 would round the scale
    # too.
    blocked = _blocked(value_OI.float(), blocks)
    return _flat(blocked.mul_(scale_PQ.float()[:, None, :, None]), value_OI.shape).to(dtype)


def _blocked(weight_OI: Tensor, blocks: tuple[int, int]) -> Tensor:
    """[P, rows, Q, columns], padded with zeros to whole blocks."""
    high, wide = scale_shape(weight_OI.shape, blocks)
    rows, columns = blocks
    missing = high * rows - weight_OI.shape[0], wide * columns - weight_OI.shape[1]
    if any(missing):
        weight_OI = F.pad(weight_OI, (0, missing[1], 0, missing[0]))
    return weight_OI.reshape(high, rows, wide, columns)


def _flat(blocked: Tensor, shape: torch.Size) -> Tensor:
    high, rows, wide, columns = blocked.shape
    return blocked.view(high * rows, wide * columns)[: shape[0], : shape[1]]
