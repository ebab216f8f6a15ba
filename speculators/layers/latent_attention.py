"""DeepSeek-V3's latent attention (MLA) in plain torch: project and combine.

    attention = LatentAttention(config)
    q, key, value = attention.project(x_TH, position_T)

Keys and values are expanded to all heads. The rotary embedding rotates interleaved pairs of a
head's R rope dims; YaRN is supported.

transformers' `modeling_rope_utils` is not used for YaRN: its frequencies 1 / theta^e differ from
theta^-e in the last bit (in all of 5,184 configurations tried), and without `mscale_all_dim` or
`mscale` it scales cos and sin otherwise than vLLM (deepseek_scaling_rope.py), which serves the
layer.

Shapes: "..." leading dimensions, B rows, T tokens, H hidden, A heads, D = nope + rope dims of a
query or key head, V value dims of a head, R = rope dims.
"""

import math

import torch
from torch import Tensor, nn

from outrider.speculators.layers.attention import Config, RMSNorm, by_head
from outrider.speculators.layers.rope import rope_of


class LatentAttention(nn.Module):
    """Multi-head latent attention over inputs of width `into`, by default H."""

    def __init__(self, config: Config, into: int | None = None):
        super().__init__()
        self.config = config
        hidden, heads, eps = (
            config[key] for key in ("hidden_size", "num_attention_heads", "rms_norm_eps")
        )
        if into is None:
            into = hidden
        q_rank = config.get("q_lora_rank")
        kv_rank = config["kv_lora_rank"]
        nope = config["qk_nope_head_dim"]
        rope = config["qk_rope_head_dim"]
        if q_rank is None:
            self.q_proj = nn.Linear(into, heads * (nope + rope), bias=False)
        else:
            self.q_a_proj = nn.Linear(into, q_rank, bias=False)
            self.q_a_layernorm = RMSNorm(q_rank, eps)
            self.q_b_proj = nn.Linear(q_rank, heads * (nope + rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(into, kv_rank + rope, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_rank, eps)
        self.kv_b_proj = nn.Linear(kv_rank, heads * (nope + config["v_head_dim"]), bias=False)
        self.o_proj = nn.Linear(heads * config["v_head_dim"], hidden, bias=False)

    @property
    def softmax_scale(self) -> float:
        """1/sqrt(D), times YaRN's mscale squared for an extended context such as R1's."""
        scale = (self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"]) ** -0.5
        rope = rope_of(self.config)
        if rope["rope_type"] == "yarn":
            # As vLLM's deepseek_v2.py (`self.scaling * mscale * mscale`), for queries and keys.
            scale *= _yarn_mscale(rope["factor"], rope.get("mscale_all_dim", 0.0)) ** 2
        return scale

    def project(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [..., A, T, D], values [..., A, T, V].

        `x` holds the normed inputs [..., T, H] at the positions [..., T].
        """
        heads, nope, rope, value_dim = (
            self.config[key]
            for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        q = (
            self.q_proj(x)
            if self.config.get("q_lora_rank") is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        )
        q_nope, q_rope = by_head(q, heads).split([nope, rope], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(
            [self.config["kv_lora_rank"], rope], dim=-1
        )
        kv = by_head(self.kv_b_proj(self.kv_a_layernorm(latent)), heads)
        # The rope part of the key is one vector for all heads (arXiv:2405.04434, section 2.1.3), so
        # it is not part of `kv`.
        k_nope, value = kv.split([nope, value_dim], dim=-1)
        tables = self.tables(position)
        return (
            torch.cat([q_nope, _rotate(q_rope, *tables)], -1),
            torch.cat([k_nope, _rotate(k_rope.unsqueeze(-3), *tables).expand_as(q_rope)], -1),
            # A copy, since a view would keep all of `kv` alive until backward.
            value.contiguous(),
        )

    def tables(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 cos and sin [..., 1, T, R/2] of each pair's angle."""
        rope = rope_of(self.config)
        angle = position[..., None, :, None].float() * self._frequencies().to(position.device)
        scale = 1.0
        if rope["rope_type"] == "yarn":
            scale = _yarn_mscale(rope["factor"], rope.get("mscale", 1.0)) / _yarn_mscale(
                rope["factor"], rope.get("mscale_all_dim", 0.0)
            )
        return angle.cos() * scale, angle.sin() * scale

    def project_output(self, attended: Tensor) -> Tensor:
        """Projects attended values [..., A, T, V] to [..., T, H]."""
        return self.o_proj(attended.transpose(-3, -2).flatten(-2))

    def _frequencies(self) -> Tensor:
        """R/2 frequencies; YaRN (arXiv:2309.00071) interpolates long wavelengths by `factor`."""
        dims = self.config["qk_rope_head_dim"]
        rope = rope_of(self.config)
        exponent = torch.arange(0, dims, 2, dtype=torch.float32) / dims
        plain = rope["rope_theta"] ** -exponent
        if rope["rope_type"] != "yarn":
            return plain
        original = rope["original_max_position_embeddings"]
        base = math.log(rope["rope_theta"])

        def dimension_of(rotations: float) -> float:
            return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * base)

        # The dimensions between which YaRN passes from extrapolation to interpolation, rounded and
        # clamped as in vLLM's `yarn_find_correction_range` (layers/rotary_embedding/common.py:46).
        low = max(math.floor(dimension_of(rope.get("beta_fast", 32.0))), 0)
        high = min(math.ceil(dimension_of(rope.get("beta_slow", 1.0))), dims - 1)
        # 0.001 instead of a division by zero, as in `yarn_linear_ramp_mask` (common.py:65).
        ramp = (torch.arange(dims // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
        ramp = ramp.clamp(0, 1)
        return plain / rope["factor"] * ramp + plain * (1 - ramp)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates interleaved pairs; returns first members, then second members."""
    # DeepSeek rotates interleaved pairs (vLLM: deepseek_v2.py:553, is_neox_style=False). The result
    # is not interleaved again: queries and keys are permuted alike, so their products are equal.
    first = x[..., 0::2].float()
    second = x[..., 1::2].float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
