"""What the hidden states are stored as: bfloat16, or FP8 (e4m3) with one float32 scale for each token.

A state after the final norm has entries of one size, up to a few outliers. One scale a token puts the largest entry at e4m3's
largest number and leaves entries down to 1 / 28,672 of it their relative step of 1/8; half of bfloat16's bytes (7172 for R1's
14,336).

    stored = encode(hidden_TH, "fp8")       # {"hidden": float8_e4m3fn [T, H], "scale": float32 [T]}
    decode(stored)                          # bfloat16 [T, H]

Shapes: T tokens, H hidden.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.data.config import StateDtype

STORED_AS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
"""torch's name of the type of the stored values."""

LARGEST = torch.finfo(torch.float8_e4m3fn).max
"""448: the largest finite e4m3 number, which each token's largest entry is scaled to."""


def encode(hidden_TH: Tensor, dtype: StateDtype) -> dict[str, Tensor]:
    """The tensors that stand in a shard. A state that is not finite stays so: its scale is, and its values with it."""
    if dtype == "bf16":
        return {"hidden": hidden_TH.to(torch.bfloat16)}
    wide_TH = hidden_TH.float()
    scale_T = wide_TH.abs().amax(-1) / LARGEST
    # A state of zeros has no scale of its own; any will do.
    divisor_T = torch.where(scale_T == 0, 1.0, scale_T)
    return {"hidden": (wide_TH / divisor_T[:, None]).to(torch.float8_e4m3fn), "scale": divisor_T}


def decode(stored: Mapping[str, Tensor]) -> Tensor:
    """What `encode` took, in bfloat16 [T, H]."""
    if "scale" not in stored:
        return stored["hidden"]
    return (stored["hidden"].float() * stored["scale"][:, None]).to(torch.bfloat16)
