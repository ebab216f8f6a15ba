"""What all attention layers share: their protocol, the norm, and the layout of heads.

RMSNorm(64, 1e-6)(x)
by_head(q_proj(x), heads=4)

Shapes: "..." leading dimensions, T tokens, A heads, D dims of a query or key head, V value dims of
a head, H hidden.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Config = Mapping[str, Any]
"""A target's config.json."""


class Attention(Protocol):
    """The projections before and after attention; the unroll itself computes attention."""

    @property
    def softmax_scale(self) -> float:
        """Scale of the attention scores."""

    def project(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [..., A, T, D], values [..., A, T, V]."""

    def project_output(self, attended: Tensor) -> Tensor:
        """Projects attended values [..., A, T, V] to [..., T, H]."""


def by_head(x: Tensor, heads: int) -> Tensor:
    """Reshapes [..., T, A*D] to [..., A, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, with the mean square in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        # Rounded to the input's dtype before the weight is applied, as in transformers'
        # DeepseekV3RMSNorm; the mean of squares in bf16 would have only 8 significant bits.
        return self.weight * (
            wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        ).to(x.dtype)
