"""Llama's attention in two halves, for the unroll: project and combine.

    rope = head_rope(config, theta=10000.0)
    attention = LlamaAttention(hidden=192, heads=3, kv_heads=3, head_dim=64, rope=rope, into=384)
    q, key, value = attention.project(x_NX, position_N)
    attention = Glm4MoeAttention(config)

With `norm_eps`, queries and keys are normed per head before they are rotated, as in Qwen3. GLM-4.5
makes these norms and the biases optional, and rotates only the first dims of a head. The rotary
embedding rotates the pairs (d, d + R/2) of R dims, not interleaved pairs as in DeepSeek.

Shapes: N tokens after any leading dimensions, X width of the input, A heads, G heads of keys and
values, D dims of a head, R rotated dims of a head, H hidden.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from outrider.speculators.layers.attention import Config, RMSNorm, by_head
from outrider.speculators.layers.rope import rope_of
from outrider.speculators.layers.rotary import Rotary

Tables = tuple[Tensor, Tensor]
"""Cosine and sine [1, N, R/2] of the angles at N positions."""


class LlamaAttention(nn.Module):
    """Grouped-query attention; the input may be wider than the output."""

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rope: Mapping[str, Any],
        into: int,
        norm_eps: float | None = None,
        bias: bool = False,
    ):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.rotary = Rotary(head_dim, rope)
        self.softmax_scale = head_dim**-0.5
        self.q_proj = nn.Linear(into, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(into, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(into, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = (
            nn.Identity() if norm_eps is None else RMSNorm(head_dim, norm_eps) for _ in range(2)
        )

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys, and values, each [A, N, D]."""
        tables = self.tables(position_N)
        return (
            self.apply_rotary(self.queries(x_NX), tables),
            self.apply_rotary(self.keys(x_NX), tables),
            self.values(x_NX),
        )

    def queries(self, x_NX: Tensor) -> Tensor:
        """Queries [A, N, D], not rotated."""
        return self.q_norm(by_head(self.q_proj(x_NX), self.heads))

    def keys(self, x_NX: Tensor) -> Tensor:
        """Keys [G, N, D], not rotated."""
        return self.k_norm(by_head(self.k_proj(x_NX), self.kv_heads))

    def values(self, x_NX: Tensor) -> Tensor:
        """Values [A, N, D]."""
        return self._repeated(by_head(self.v_proj(x_NX), self.kv_heads))

    def tables(self, position_N: Tensor) -> Tables:
        """Cosine and sine of the angles at these positions."""
        return self.rotary.tables(position_N)

    def apply_rotary(self, heads_AMD: Tensor, tables: Tables) -> Tensor:
        """Rotates queries or keys to [A, N, D]; a single row is broadcast."""
        return self._repeated(_rotate(heads_AMD, *tables))

    def project_output(self, attended_AND: Tensor) -> Tensor:
        """Projects attended values [A, N, D] to [N, H]."""
        return self.o_proj(attended_AND.transpose(-3, -2).flatten(-2))

    def _repeated(self, x_AND: Tensor) -> Tensor:
        """Repeats key or value heads to match query heads; queries are unchanged."""
        if x_AND.shape[-3] == self.heads:
            return x_AND
        return x_AND.repeat_interleave(self.heads // self.kv_heads, dim=-3)


class Glm4MoeAttention(LlamaAttention):
    """The attention of GLM-4.5 to 4.7 (`glm4_moe`), from config.json."""

    def __init__(self, config: Config):
        share = config.get("partial_rotary_factor", 0.5)
        rope = {"partial_rotary_factor": share, **rope_of(config)}
        super().__init__(
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rope=rope,
            into=config["hidden_size"],
            norm_eps=config["rms_norm_eps"] if config["use_qk_norm"] else None,
            bias=config["attention_bias"],
        )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x.float().tensor_split((half, 2 * half), -1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat([*turned, rest.expand(*turned[0].shape[:-1], -1)], -1).to(x.dtype)
