"""Llama's attention in two halves, for the unroll: project and combine.

    attention = LlamaAttention(hidden=192, heads=3, kv_heads=3, head_dim=64, theta=1e4, into=384)
    q, key, value = attention.project(x_NX, position_N)

With `norm_eps` queries and keys are normed by head before they are rotated, as in Qwen3.

Rotary embedding turns the halves of a head (d, d + D/2), not interleaved pairs as DeepSeek does.

Shapes: N tokens, X width of the input, A heads, G heads of keys and values, D dims of a head, H
hidden.
"""

import torch
from torch import Tensor, nn

from outrider.speculators.layers.deepseek_layer import RMSNorm

Tables = tuple[Tensor, Tensor]
"""Cosine and sine [N, D / 2] of the angles of N positions."""


class LlamaAttention(nn.Module):
    """Grouped-query attention; the input may be wider than the output."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        theta: float,
        into: int,
        norm_eps: float | None = None,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.theta = heads, kv_heads, head_dim, theta
        self.softmax_scale = head_dim**-0.5
        self.q_proj = nn.Linear(into, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(into, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(into, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = (
            nn.Identity() if norm_eps is None else RMSNorm(head_dim, norm_eps) for _ in range(2)
        )

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys and values [A, N, D]; keys and values repeated over a group."""
        tables = self.tables(position_N)
        return (
            self.rotated(self.queries(x_NX), tables),
            self.rotated(self.keys(x_NX), tables),
            self.values(x_NX),
        )

    def queries(self, x_NX: Tensor) -> Tensor:
        """Queries [A, N, D], not rotated."""
        return self.q_norm(self._by_head(self.q_proj(x_NX), self.heads))

    def keys(self, x_NX: Tensor) -> Tensor:
        """Keys [G, N, D], not rotated."""
        return self.k_norm(self._by_head(self.k_proj(x_NX), self.kv_heads))

    def values(self, x_NX: Tensor) -> Tensor:
        """Values [A, N, D]."""
        return self._repeated(self._by_head(self.v_proj(x_NX), self.kv_heads))

    def tables(self, position_N: Tensor) -> Tables:
        """The rotation of these positions."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        frequency = (self.theta**-exponent).to(position_N.device)
        angle = position_N[:, None].float() * frequency
        return angle.cos(), angle.sin()

    def rotated(self, heads_AMD: Tensor, tables: Tables) -> Tensor:
        """Queries or keys [A, N, D] at these positions; M is N, or 1 for a row that all share."""
        return self._repeated(_rotate(heads_AMD, *tables))

    def combine(self, attended_AND: Tensor) -> Tensor:
        """Attended values [A, N, D] to [N, H]."""
        return self.o_proj(attended_AND.transpose(0, 1).flatten(1))

    def _by_head(self, x_NX: Tensor, heads: int) -> Tensor:
        return x_NX.unflatten(-1, (heads, self.head_dim)).transpose(0, 1)

    def _repeated(self, x_AND: Tensor) -> Tensor:
        """One head for each query; queries themselves as they are."""
        if len(x_AND) == self.heads:
            return x_AND
        return x_AND.repeat_interleave(self.heads // self.kv_heads, dim=0)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
