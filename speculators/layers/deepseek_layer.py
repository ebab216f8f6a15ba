"""One decoder layer of DeepSeek-V3/R1 in plain torch: latent attention, then a dense or MoE MLP.

The MTP speculator is one such layer, and nano R1, the embedded target, is a stack of them. The
layer is written here so that the unroll can split the attention (depth-0 keys are projected once
and read at every depth) and so that training is fast. It is tested against transformers'
DeepseekV3DecoderLayer in float32.

    config = json.load(open("config.json"))
    layer = DecoderLayer(config, config["num_hidden_layers"])     # the MTP layer, after the last

Shapes: B rows, T tokens, N = B*T, M tokens of one expert or of a group, H hidden, A heads, D = nope
+ rope dims of a query or key head, V value dims of a head, R = rope dims, X experts, F intermediate
size of an expert, k experts of a token.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = Mapping[str, Any]
"""A config.json of DeepSeek-V3's architecture."""

Rotary = tuple[Tensor, Tensor]


def rotary_tables(config: Config, position_BT: Tensor) -> Rotary:
    """cos and sin [B, 1, T, R/2] in float32 for positions [B, T]: an angle per interleaved pair."""
    frequency_R = _rope_frequencies(config).to(position_BT.device)
    angle_B1TR = position_BT[:, None, :, None].float() * frequency_R
    scale = 1.0
    if yarn := _rope(config)[1]:
        scale = _yarn_mscale(yarn["factor"], yarn.get("mscale", 1.0)) / _yarn_mscale(
            yarn["factor"], yarn.get("mscale_all_dim", 0.0)
        )
    return angle_B1TR.cos() * scale, angle_B1TR.sin() * scale


class RMSNorm(nn.Module):
    """x / rms(x) * weight, with the mean square in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (
            wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        ).to(x.dtype)


class LatentAttention(nn.Module):
    """Multi-head latent attention with keys and values expanded to heads.

    `project` makes queries, keys and values; `combine` maps attended values back to H. The input
    is H wide, or `into` wide.
    """

    def __init__(self, config: Config, into: int | None = None):
        super().__init__()
        self.config = config
        hidden, heads, eps = (
            config[key] for key in ("hidden_size", "num_attention_heads", "rms_norm_eps")
        )
        into = hidden if into is None else into
        q_rank, kv_rank = config.get("q_lora_rank"), config["kv_lora_rank"]
        nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
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
        if yarn := _rope(self.config)[1]:
            scale *= _yarn_mscale(yarn["factor"], yarn.get("mscale_all_dim", 0.0)) ** 2
        return scale

    def project(self, x_BTH: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys [B, A, T, D] and values [B, A, T, V] of normed inputs."""
        rows, tokens, _ = x_BTH.shape
        heads, nope, rope, value_dim = (
            self.config[key]
            for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        q = (
            self.q_proj(x_BTH)
            if self.config.get("q_lora_rank") is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTH)))
        )
        q_nope, q_rope = q.view(rows, tokens, heads, -1).transpose(1, 2).split([nope, rope], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x_BTH).split(
            [self.config["kv_lora_rank"], rope], dim=-1
        )
        kv = (
            self.kv_b_proj(self.kv_a_layernorm(latent))
            .view(rows, tokens, heads, -1)
            .transpose(1, 2)
        )
        k_nope, value = kv.split([nope, value_dim], dim=-1)
        k_rope = _rotate(k_rope[:, None], rotary).expand(-1, heads, -1, -1)
        return (
            torch.cat([q_nope, _rotate(q_rope, rotary)], -1),
            torch.cat([k_nope, k_rope], -1),
            # A copy: attention would keep the whole of `kv` for its half.
            value.contiguous(),
        )

    def combine(self, attended_BATV: Tensor) -> Tensor:
        """Attended values [B, A, T, V] to [B, T, H]."""
        return self.o_proj(attended_BATV.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid router scores; a correction bias changes the choice of experts, not their weights.

    DeepSeek's `noaux_tc`.
    """

    e_score_correction_bias: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.groups, self.best_groups = config["n_group"], config["topk_group"]
        self.chosen, self.normalised = config["num_experts_per_tok"], config["norm_topk_prob"]
        self.scale, experts = config["routed_scaling_factor"], config["n_routed_experts"]
        self.weight = nn.Parameter(torch.empty(experts, config["hidden_size"]))
        nn.init.normal_(self.weight, std=0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts, dtype=torch.float32))

    def forward(self, x_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [N, k] in float32 and expert indices [N, k], from the best groups of experts."""
        score_NX = F.linear(x_NH.float(), self.weight.float()).sigmoid()
        choice_NX = score_NX.detach() + self.e_score_correction_bias
        if self.groups > 1:
            by_group = choice_NX.unflatten(1, (self.groups, -1))
            best_groups = (
                by_group.topk(2, dim=-1).values.sum(-1).topk(self.best_groups, dim=-1).indices
            )
            outside = torch.ones_like(by_group[..., 0], dtype=torch.bool).scatter_(
                1, best_groups, False
            )
            choice_NX = by_group.masked_fill(outside[..., None], float("-inf")).flatten(1)
        index_Nk = choice_NX.topk(self.chosen, dim=-1, sorted=False).indices
        weight_Nk = score_NX.gather(1, index_Nk)
        if self.normalised:
            weight_Nk = weight_Nk / (weight_Nk.sum(-1, keepdim=True) + 1e-20)
        return weight_Nk * self.scale, index_Nk


class Experts(nn.Module):
    """The routed experts' weights, stacked: gate and up [X, 2F, H], down [X, H, F].

    Tokens are sorted by expert and go through grouped products, without a wait for the host.
    Frozen weights are buffers outside of the state: no optimizer, gradient or checkpoint holds
    them, and ZeRO does not shard them.
    """

    gate_up_proj: Tensor
    down_proj: Tensor

    def __init__(self, config: Config, frozen: bool):
        super().__init__()
        self.count, hidden = config["n_routed_experts"], config["hidden_size"]
        gate_up = torch.empty(self.count, 2 * config["moe_intermediate_size"], hidden)
        down = torch.empty(self.count, hidden, config["moe_intermediate_size"])
        for name, stack in (("gate_up_proj", gate_up), ("down_proj", down)):
            if frozen:
                self.register_buffer(name, stack, persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(nn.init.normal_(stack, std=0.02)))

    def forward(self, x_NH: Tensor, weight_Nk: Tensor, index_Nk: Tensor) -> Tensor:
        sorted_M, order_M = index_Nk.flatten().sort(stable=True)
        expert_X = torch.arange(self.count, device=x_NH.device)
        ends_X = torch.searchsorted(sorted_M, expert_X, right=True, out_int32=True)
        gate_MF, up_MF = self.gate_up(x_NH[order_M // index_Nk.shape[1]], ends_X).chunk(2, -1)
        routed_MH = self.down(F.silu(gate_MF) * up_MF, ends_X)
        del gate_MF, up_MF
        # Back in the tokens' order, not index_add: that would keep its source, and on a GPU sum
        # in any order.
        routed_NkH = routed_MH.index_select(0, order_M.argsort()).view(*index_Nk.shape, -1)
        return (weight_Nk[:, None].to(x_NH.dtype) @ routed_NkH)[:, 0]

    def gate_up(self, x_MH: Tensor, ends_X: Tensor) -> Tensor:
        """Gate and up projections [M, 2F] of tokens sorted by expert."""
        return grouped_linear(x_MH, self.gate_up_proj, ends_X)

    def down(self, act_MF: Tensor, ends_X: Tensor) -> Tensor:
        """Down projections [M, H] of tokens sorted by expert."""
        return grouped_linear(act_MF, self.down_proj, ends_X)


def grouped_linear(x_MI: Tensor, stack_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """x W^T [M, O] with the matrix of each row's group: tokens up to `ends_X[0]` use the first.

    `grouped_mm` takes float32 and half precision, and widths of multiples of 16 bytes.
    """
    return _GroupedLinear.apply(x_MI, stack_XOI, ends_X)


class _GroupedLinear(torch.autograd.Function):
    """Grouped products whose gradient of the stack has the stack's own layout.

    Through a transposed view it would have another, and autograd would copy it once more: 15 GB for
    R1's gate and up projections.
    """

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, stack_XOI: Tensor, ends_X: Tensor) -> Tensor:
        trained = ctx.needs_input_grad[1]
        ctx.save_for_backward(x_MI if trained else None, stack_XOI, ends_X)
        return F.grouped_mm(x_MI, stack_XOI.transpose(1, 2), offs=ends_X)

    @staticmethod
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x_MI, stack_XOI, ends_X = ctx.saved_tensors
        grad_MO = grad_MO.contiguous()
        grad_x_MI = F.grouped_mm(grad_MO, stack_XOI, offs=ends_X)
        if x_MI is None:
            return grad_x_MI, None, None
        grad_stack_XOI = F.grouped_mm(grad_MO.T, x_MI.contiguous(), offs=ends_X)
        # Blackwell's kernel writes no zeros for a group without tokens (pytorch issue 172439).
        empty_X = ends_X.diff(prepend=ends_X.new_zeros(1)) == 0
        return grad_x_MI, grad_stack_XOI.masked_fill_(empty_X[:, None, None], 0), None


def expert_name(expert: int, projection: str) -> str:
    """The checkpoint's name of a routed expert's weight, without the layer's prefix."""
    return f"mlp.experts.{expert}.{projection}.weight"


class MixtureOfExperts(nn.Module):
    """Routed experts plus the shared ones that every token goes through."""

    def __init__(self, config: Config, frozen_experts: bool):
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config, frozen_experts)
        self.shared_experts = GatedMLP(
            config["hidden_size"], config["moe_intermediate_size"] * config["n_shared_experts"]
        )

    def forward(self, x: Tensor) -> Tensor:
        x_NH = x.flatten(0, -2)
        return (self.experts(x_NH, *self.gate(x_NH)) + self.shared_experts(x_NH)).view_as(x)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to its input.

    `layer_index` decides between a dense MLP and experts.
    """

    def __init__(self, config: Config, layer_index: int, frozen_experts: bool = False):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = LatentAttention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        if layer_index < config["first_k_dense_replace"]:
            self.mlp: nn.Module = GatedMLP(hidden, config["intermediate_size"])
        else:
            self.mlp = MixtureOfExperts(config, frozen_experts)

    def project(self, x_BTH: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the layer's input."""
        return self.self_attn.project(self.input_layernorm(x_BTH), rotary)

    def finish(self, x_BTH: Tensor, attended_BATV: Tensor) -> Tensor:
        """The layer's output, given its input and the attended values."""
        x_BTH = x_BTH + self.self_attn.combine(attended_BATV)
        return x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))

    def forward(self, x_BTH: Tensor, rotary: Rotary) -> Tensor:
        """The layer with causal attention over each row."""
        q, k, v = self.project(x_BTH, rotary)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.self_attn.softmax_scale
        )
        return self.finish(x_BTH, attended)


def _rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotates interleaved pairs; the result has all first members, then all second ones."""
    cos, sin = rotary
    first, second = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _rope(config: Config) -> tuple[float, Config | None]:
    """Base of the rotary embedding; YaRN's numbers, or None without it.

    Rope parameters may have the old spelling (rope_theta, rope_scaling) or the new one.
    """
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or rope
    theta = float(rope.get("rope_theta") or config.get("rope_theta", 10000.0))
    if scaling.get("rope_type", scaling.get("type")) != "yarn":
        return theta, None
    return theta, {key: value for key, value in scaling.items() if value is not None}


def _rope_frequencies(config: Config) -> Tensor:
    """R/2 frequencies. YaRN interpolates long wavelengths by `factor` and keeps short ones.

    arXiv:2309.00071.
    """
    dims, (theta, yarn) = config["qk_rope_head_dim"], _rope(config)
    exponent = torch.arange(0, dims, 2, dtype=torch.float32) / dims
    plain = theta**-exponent
    if not yarn:
        return plain
    original = yarn["original_max_position_embeddings"]

    def dimension_of(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(yarn.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(dimension_of(yarn.get("beta_slow", 1.0))), dims - 1)
    ramp = (torch.arange(dims // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    ramp = ramp.clamp(0, 1)
    return plain / yarn["factor"] * ramp + plain * (1 - ramp)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
