"""Routed experts that are not trained, in the target's precision, dequantized one at a time.

R1's routed experts are 11.3 of the MTP layer's 11.6 B parameters: 11.3 GB as the target ships them
(FP8), 22.6 GB in bf16, and 180 GB with gradients and AdamW's states. Here they are neither
parameters nor buffers: no optimizer, gradient or training checkpoint holds them, and ZeRO does not
shard them. lora.py adds trained low-rank adapters.

    speculator = load_mtp(target_dir, frozen_experts=True)      # kinds/mtp/checkpoint.py

Shapes: X experts, O output and I input features, P and Q blocks of them, M tokens of an expert, H
hidden, F intermediate.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.speculators.checkpoints.fp8 import dequantize
from outrider.speculators.layers.deepseek_layer import DeepseekArch, Experts

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class Stack:
    """One projection of all experts as stored: [X, O, I], with scales [X, P, Q] for FP8."""

    value_XOI: Tensor
    scale_XPQ: Tensor | None = None
    blocks: tuple[int, int] | None = None

    def matrix(self, expert: int, dtype: torch.dtype) -> Tensor:
        """An expert's weight [O, I]."""
        if self.scale_XPQ is None or self.blocks is None:
            return self.value_XOI[expert].to(dtype)
        return dequantize(self.value_XOI[expert], self.scale_XPQ[expert], self.blocks, dtype)

    def to(self, device: torch.device) -> None:
        """Moves the stack in place."""
        self.value_XOI = self.value_XOI.to(device)
        self.scale_XPQ = None if self.scale_XPQ is None else self.scale_XPQ.to(device)


class FrozenExperts(Experts):
    """`Experts` one by one, from stacks that are neither parameters nor buffers."""

    DENSE_UP_TO = 0
    """All experts at once would dequantize all of them at once."""

    def __init__(self, arch: DeepseekArch, stacks: dict[str, Stack]):
        nn.Module.__init__(self)
        self.count = arch.experts
        self.stacks = stacks

    def _one_by_one(self, x_MH: Tensor, counts: list[int]) -> Tensor:
        pieces = []
        for expert, part_CH in enumerate(x_MH.split(counts)):
            if len(part_CH):
                gate, up = self.gate_up(expert, part_CH).chunk(2, -1)
                pieces.append(self.down(expert, F.silu(gate) * up))
        return torch.cat(pieces)

    def gate_up(self, expert: int, x_MH: Tensor) -> Tensor:
        """One expert's gate and up projections [M, 2F] of its tokens."""
        return torch.cat(
            [self._apply_frozen(name, expert, x_MH) for name in ("gate_proj", "up_proj")], dim=-1
        )

    def down(self, expert: int, act_MF: Tensor) -> Tensor:
        """One expert's down projection [M, H]."""
        return self._apply_frozen("down_proj", expert, act_MF)

    def matrices(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """(the checkpoint's name, weight) of every expert's every projection, one at a time."""
        for expert in range(self.count):
            for name in PROJECTIONS:
                yield expert_name(expert, name), self.stacks[name].matrix(expert, dtype)

    def _apply_frozen(self, name: str, expert: int, x_MI: Tensor) -> Tensor:
        return _FrozenLinear.apply(x_MI, self.stacks[name], expert)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FrozenExperts":
        """Moves the stacks with the module; a change of dtype does not change them."""
        super()._apply(fn, recurse)
        device = fn(torch.empty(0, device=self.stacks[PROJECTIONS[0]].value_XOI.device)).device
        for stack in self.stacks.values():
            stack.to(device)
        return self


class _FrozenLinear(torch.autograd.Function):
    """x W^T with W dequantized in forward and again in backward.

    Kept for backward, W would take 22.6 GB at each depth for R1.
    """

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, stack: Stack, expert: int) -> Tensor:
        ctx.stack, ctx.expert = stack, expert
        return F.linear(x_MI, stack.matrix(expert, x_MI.dtype))

    @staticmethod
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor, None, None]:
        return grad_MO @ ctx.stack.matrix(ctx.expert, grad_MO.dtype), None, None


def expert_name(expert: int, projection: str) -> str:
    """The checkpoint's name of a routed expert's weight, without the layer's prefix."""
    return f"mlp.experts.{expert}.{projection}.weight"
