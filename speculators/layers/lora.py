"""Low-rank adapters on frozen routed experts: W + (alpha / rank) B A, merged into W at export.

B starts at zero. Not peft's: its wrapper for stacked parameters (ParamWrapper, peft 0.21) builds
W + B A of all experts in every forward pass and keeps it for backward, 22.6 GB at each depth of
R1's unroll, and rounds the sum with an FP8 weight to FP8 again. Here an adapter acts on the tokens
of its expert, and W stays as the target ships it.

    speculator.block.mlp.experts = AdaptedExperts(frozen, arch, rank=16, alpha=32.0, seed=0)

Gate and up are one product of the same input and share an A.

Shapes: X experts, R rank, M tokens of an expert, H hidden, F intermediate; A's are [X, R, in] and
B's [X, out, R].
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.layers.frozen_experts import FrozenExperts, expert_name

ADAPTERS = ("gate_up_a", "gate_up_b", "down_a", "down_b")


class AdaptedExperts(FrozenExperts):
    """Frozen experts with adapters as this module's parameters.

    The same seed gives the same A's in every process.
    """

    def __init__(
        self, frozen: FrozenExperts, arch: DeepseekArch, rank: int, alpha: float, seed: int
    ):
        super().__init__(arch, frozen.stacks)
        self.scale = alpha / rank
        draw = torch.Generator().manual_seed(seed)

        def a(width: int) -> nn.Parameter:
            # As nn.Linear and peft's A start: uniform within 1 / sqrt(inputs).
            drawn = torch.rand(arch.experts, rank, width, generator=draw)
            return nn.Parameter((2 * drawn - 1) * width**-0.5)

        self.gate_up_a = a(arch.hidden)
        self.gate_up_b = nn.Parameter(torch.zeros(arch.experts, 2 * arch.expert_intermediate, rank))
        self.down_a = a(arch.expert_intermediate)
        self.down_b = nn.Parameter(torch.zeros(arch.experts, arch.hidden, rank))

    def gate_up(self, expert: int, x_MH: Tensor) -> Tensor:
        low_MR = F.linear(x_MH, self.gate_up_a[expert])
        return super().gate_up(expert, x_MH) + self.scale * F.linear(low_MR, self.gate_up_b[expert])

    def down(self, expert: int, act_MF: Tensor) -> Tensor:
        low_MR = F.linear(act_MF, self.down_a[expert])
        return super().down(expert, act_MF) + self.scale * F.linear(low_MR, self.down_b[expert])

    def merged(self, adapters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """(checkpoint name, W + scale B A in float32) of every projection, expert by expert.

        `adapters`: the four by name, whole; under ZeRO-3 this module's own are shards.
        """
        whole = {name: adapters[name].detach().float().cpu() for name in ADAPTERS}
        for expert in range(self.count):
            gate, up = (self.scale * whole["gate_up_b"][expert] @ whole["gate_up_a"][expert]).chunk(
                2
            )
            down = self.scale * whole["down_b"][expert] @ whole["down_a"][expert]
            for name, change in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
                yield (
                    expert_name(expert, name),
                    self.stacks[name].matrix(expert, torch.float32).cpu() + change,
                )
