"""Storage of hidden states: bfloat16, or FP8 (e4m3) with one float32 scale for each token.

A state after the final norm has entries of similar size, except a few outliers. One scale per token
maps the largest entry to e4m3's largest number; entries down to 1 / 28,672 of it keep a relative
step of 1/8. FP8 takes half of bfloat16's bytes (7172 for R1's 14,336).

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
"""448, the largest finite e4m3 number: each token's largest entry is scaled to it."""


def encode(hidden_TH: Tensor, dtype: StateDtype) -> dict[str, Tensor]:
    """The tensors of a shard. A state that is not finite stays so, by its scale."""
    if dtype == "bf16":
        return {"hidden": hidden_TH.to(torch.bfloat16)}
    wide_TH = hidden_TH.float()
    scale_T = wide_TH.abs().amax(-1) / LARGEST
    # Any scale will do for a state of zeros.
    divisor_T = torch.where(scale_T == 0, 1.0, scale_T)
    return {"hidden": (wide_TH / divisor_T[:, None]).to(torch.float8_e4m3fn), "scale": divisor_T}


def decode(stored: Mapping[str, Tensor]) -> Tensor:
    """The states that `encode` took, in bfloat16 [T, H]."""
    if "scale" not in stored:
        return stored["hidden"]
    return (stored["hidden"].float() * stored["scale"][:, None]).to(torch.bfloat16)
