"""A target's decoder layer in plain torch: attention, then MLP or MoE.

The MTP speculator is one such layer, and nano R1, the embedded target, is a stack of them. The
layer is implemented here, not taken from transformers, so that it trains fast and its attention can
be split for the unroll, which projects depth-0 keys once and reads them at every depth. Tests
compare the layer in float32 with transformers' DeepseekV3DecoderLayer and Glm4MoeDecoderLayer.

    config = json.load(open("config.json"))
    layer = DecoderLayer(config, config["num_hidden_layers"])     # the MTP layer, after the last

The attention depends on the architecture (checkpoints/architectures.py); the MoE is DeepSeek-V3's.

Shapes: "..." leading dimensions, T tokens, N all tokens, M = N k rows sorted by expert, H hidden,
A heads, D dims of a query or key head, V value dims of a head, X experts, F intermediate size of an
expert, k experts per token.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.speculators.checkpoints.architectures import AttentionName, layer_of
from outrider.speculators.layers.attention import Attention, Config, RMSNorm
from outrider.speculators.layers.latent_attention import LatentAttention
from outrider.speculators.layers.llama_attention import Glm4MoeAttention

ATTENTIONS: dict[AttentionName, Callable[[Config], Attention]] = {
    "latent": LatentAttention,
    "glm4_moe": Glm4MoeAttention,
}
"""Attention of each architecture's layer, built from config.json."""


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class ExpertRouter(nn.Module):
    """DeepSeek's `noaux_tc` router, with sigmoid scores.

    A correction bias changes the choice of experts, not their weights.
    """

    e_score_correction_bias: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.groups = config["n_group"]
        self.best_groups = config["topk_group"]
        self.chosen = config["num_experts_per_tok"]
        self.normalised = config["norm_topk_prob"]
        self.scale = config["routed_scaling_factor"]
        experts = config["n_routed_experts"]
        self.weight = nn.Parameter(torch.empty(experts, config["hidden_size"]))
        # `initializer_range` of DeepSeek-V3's config.json; a loaded checkpoint overwrites it.
        nn.init.normal_(self.weight, std=0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts, dtype=torch.float32))

    def forward(self, x_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [N, k] in float32, and expert indices [N, k]."""
        # In float32: with the 8 significant bits of bf16, close scores would tie.
        score_NX = F.linear(x_NH.float(), self.weight.float()).sigmoid()
        # The bias balances the experts' load and only chooses; the weights below are unbiased
        # (arXiv:2412.19437, section 2.1.2; vLLM: grouped_topk_router.py:121).
        choice_NX = score_NX.detach() + self.e_score_correction_bias
        if self.groups > 1:
            # A group's score is the sum of its two best experts' (vLLM: grouped_topk_router.py).
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
            # 1e-20 as in transformers' DeepseekV3TopkRouter.
            weight_Nk = weight_Nk / (weight_Nk.sum(-1, keepdim=True) + 1e-20)
        return weight_Nk * self.scale, index_Nk


class Experts(nn.Module):
    """The routed experts, stacked: gate_up [X, 2F, H], down [X, H, F].

    Tokens are sorted by expert for grouped products, without synchronizing with the host. Frozen
    weights are non-persistent buffers: they have no gradient or optimizer state, are not in
    checkpoints, and are not sharded by ZeRO.
    """

    gate_up_proj: Tensor
    down_proj: Tensor

    def __init__(self, config: Config, frozen: bool):
        super().__init__()
        self.count = config["n_routed_experts"]
        hidden = config["hidden_size"]
        gate_up = torch.empty(self.count, 2 * config["moe_intermediate_size"], hidden)
        down = torch.empty(self.count, hidden, config["moe_intermediate_size"])
        for name, stack in (("gate_up_proj", gate_up), ("down_proj", down)):
            if frozen:
                self.register_buffer(name, stack, persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(nn.init.normal_(stack, std=0.02)))

    def forward(self, x_NH: Tensor, weight_Nk: Tensor, index_Nk: Tensor) -> Tensor:
        # Stable, so that each expert's rows, and thus the order of the sums in its weight gradient,
        # do not vary from run to run.
        sorted_M, order_M = index_Nk.flatten().sort(stable=True)
        expert_X = torch.arange(self.count, device=x_NH.device)
        ends_X = torch.searchsorted(sorted_M, expert_X, right=True, out_int32=True)
        gate_MF, up_MF = self.gate_up(x_NH[order_M // index_Nk.shape[1]], ends_X).chunk(2, -1)
        routed_MH = self.down(F.silu(gate_MF) * up_MF, ends_X)
        del gate_MF, up_MF
        # Restores token order without index_add, which keeps its source for backward and sums in an
        # unspecified order on a GPU.
        routed_NkH = routed_MH.index_select(0, order_M.argsort()).view(*index_Nk.shape, -1)
        return (weight_Nk[:, None].to(x_NH.dtype) @ routed_NkH)[:, 0]

    def gate_up(self, x_MH: Tensor, ends_X: Tensor) -> Tensor:
        """Gate and up projections [M, 2F] of tokens sorted by expert."""
        return grouped_linear(x_MH, self.gate_up_proj, ends_X)

    def down(self, act_MF: Tensor, ends_X: Tensor) -> Tensor:
        """Down projections [M, H] of tokens sorted by expert."""
        return grouped_linear(act_MF, self.down_proj, ends_X)


def grouped_linear(x_MI: Tensor, stack_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """Grouped product x W^T [M, O]; groups of rows end at `ends_X`.

    `grouped_mm` supports float32 and half precision, and widths that are multiples of 16 bytes.
    """
    return _GroupedLinear.apply(x_MI, stack_XOI, ends_X)


class _GroupedLinear(torch.autograd.Function):
    """Grouped product whose weight gradient has the memory layout of `stack_XOI`.

    Through the transposed view, autograd would use a different layout and then copy the gradient:
    15 GB for R1's gate and up projections.
    """

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, stack_XOI: Tensor, ends_X: Tensor) -> Tensor:
        ctx.save_for_backward(x_MI if ctx.needs_input_grad[1] else None, stack_XOI, ends_X)
        return F.grouped_mm(x_MI, stack_XOI.transpose(1, 2), offs=ends_X)

    @staticmethod
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x_MI, stack_XOI, ends_X = ctx.saved_tensors
        grad_MO = grad_MO.contiguous()
        grad_x_MI = F.grouped_mm(grad_MO, stack_XOI, offs=ends_X)
        if x_MI is None:
            return grad_x_MI, None, None
        grad_stack_XOI = F.grouped_mm(grad_MO.T, x_MI.contiguous(), offs=ends_X)
        # Blackwell's kernel does not write zeros for a group without tokens (pytorch issue 172439).
        empty_X = ends_X.diff(prepend=ends_X.new_zeros(1)) == 0
        return grad_x_MI, grad_stack_XOI.masked_fill_(empty_X[:, None, None], 0), None


def expert_name(expert: int, projection: str) -> str:
    """A routed expert's weight name in checkpoints, without the layer's prefix."""
    return f"mlp.experts.{expert}.{projection}.weight"


class MixtureOfExperts(nn.Module):
    """Routed experts plus shared experts, which process every token."""

    def __init__(self, config: Config, frozen_experts: bool):
        super().__init__()
        self.gate = ExpertRouter(config)
        self.experts = Experts(config, frozen_experts)
        self.shared_experts = GatedMLP(
            config["hidden_size"], config["moe_intermediate_size"] * config["n_shared_experts"]
        )

    def forward(self, x: Tensor) -> Tensor:
        x_NH = x.flatten(0, -2)
        return (self.experts(x_NH, *self.gate(x_NH)) + self.shared_experts(x_NH)).view_as(x)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to its input.

    `layer_index` determines whether the MLP is dense or has experts.
    """

    def __init__(self, config: Config, layer_index: int, frozen_experts: bool = False):
        super().__init__()
        hidden = config["hidden_size"]
        eps = config["rms_norm_eps"]
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = ATTENTIONS[layer_of(config).attention](config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        if layer_index < config["first_k_dense_replace"]:
            self.mlp: nn.Module = GatedMLP(hidden, config["intermediate_size"])
        else:
            self.mlp = MixtureOfExperts(config, frozen_experts)

    def project(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the layer's input [..., T, H]."""
        return self.self_attn.project(self.input_layernorm(x), position)

    def finish_layer(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, given input and attended values [..., A, T, V]."""
        x = x + self.self_attn.project_output(attended)
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Applies the layer with causal attention over each row."""
        q, k, v = self.project(x, position)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.self_attn.softmax_scale
        )
        return self.finish_layer(x, attended)
