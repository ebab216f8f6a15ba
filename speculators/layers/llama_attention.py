"""Llama's attention in two halves, for the unroll: project and combine.

    attention = LlamaAttention(hidden=192, heads=3, kv_heads=3, head_dim=64, theta=1e4, into=384)
    q, key, value = attention.project(x_NX, position_N)

Rotary embedding turns the halves of a head (d, d + D/2), not interleaved pairs as DeepSeek does.

Shapes: N tokens, X width of the input, A heads, G heads of keys and values, D dims of a head, H
hidden.
"""

import torch
from torch import Tensor, nn


class LlamaAttention(nn.Module):
    """Grouped-query attention; the input may be wider than the output."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, theta: float, into: int
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.theta = heads, kv_heads, head_dim, theta
        self.q_proj = nn.Linear(into, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(into, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(into, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

    @property
    def softmax_scale(self) -> float:
        """1/sqrt(D)."""
        return self.head_dim**-0.5

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys and values [A, N, D]; keys and values repeated over a group."""
        q_AND = self.q_proj(x_NX).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)
        key_GND, value_GND = (
            projection(x_NX).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(0, 1)
            for projection in (self.k_proj, self.v_proj)
        )
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        frequency = (self.theta**-exponent).to(position_N.device)
        angle = position_N[:, None].float() * frequency
        cos, sin = angle.cos(), angle.sin()
        q_AND, key_GND = _rotate(q_AND, cos, sin), _rotate(key_GND, cos, sin)
        if self.kv_heads != self.heads:
            group = self.heads // self.kv_heads
            key_GND = key_GND.repeat_interleave(group, dim=0)
            value_GND = value_GND.repeat_interleave(group, dim=0)
        return q_AND, key_GND, value_GND

    def combine(self, attended_AND: Tensor) -> Tensor:
        """Attended values [A, N, D] to [N, H]."""
        return self.o_proj(attended_AND.transpose(0, 1).flatten(1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
