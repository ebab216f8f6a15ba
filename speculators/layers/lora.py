"""Low-rank adapters on frozen routed experts: W + scale B A.

B starts at zero; export merges the product into W. peft is not used because its wrapper for stacked
parameters (ParamWrapper, peft 0.21) builds W + B A for all experts in every forward pass and keeps
it for backward: 22.5 GB at each depth of R1's unroll. Here, an adapter is applied only to its
expert's tokens. Gate and up projections are computed as one product and share an A.

    speculator.block.mlp.experts = AdaptedExperts(frozen, rank=16, alpha=32.0, seed=0)

Shapes: X experts, R rank, M tokens of all experts, H hidden, F intermediate; A is [X, R, in] and B
[X, out, R].
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from outrider.speculators.layers.decoder_layer import Experts, expert_name, grouped_linear

ALPHA = 32.0
"""The product B A is scaled by alpha / rank."""

ADAPTERS = ("gate_up_a", "gate_up_b", "down_a", "down_b")


class AdaptedExperts(Experts):
    """Frozen experts with trainable adapters.

    The same seed gives the same A in every process.
    """

    gate_up_a: Tensor
    gate_up_b: Tensor
    down_a: Tensor
    down_b: Tensor

    def __init__(self, frozen: Experts, rank: int, alpha: float, seed: int):
        nn.Module.__init__(self)
        self.count = frozen.count
        # arXiv:2106.09685, section 4.1; without it, another rank would need another learning rate.
        self.scale = alpha / rank
        draw = torch.Generator().manual_seed(seed)
        for name in ("gate_up", "down"):
            stack_XOI = frozen.get_buffer(f"{name}_proj")
            experts, out, into = stack_XOI.shape
            self.register_buffer(f"{name}_proj", stack_XOI, persistent=False)
            # Initialized like nn.Linear and peft's A: uniform within +- 1 / sqrt(inputs).
            drawn = (2 * torch.rand(experts, rank, into, generator=draw) - 1) * into**-0.5
            self.register_parameter(f"{name}_a", nn.Parameter(drawn))
            # Zero, so that training starts at the base (arXiv:2106.09685, section 4.1).
            self.register_parameter(f"{name}_b", nn.Parameter(torch.zeros(experts, out, rank)))

    def gate_up(self, x_MH: Tensor, ends_X: Tensor) -> Tensor:
        added = grouped_linear(grouped_linear(x_MH, self.gate_up_a, ends_X), self.gate_up_b, ends_X)
        return super().gate_up(x_MH, ends_X) + self.scale * added

    def down(self, act_MF: Tensor, ends_X: Tensor) -> Tensor:
        added = grouped_linear(grouped_linear(act_MF, self.down_a, ends_X), self.down_b, ends_X)
        return super().down(act_MF, ends_X) + self.scale * added

    def merge_adapters(self, adapters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yields (checkpoint name, float32 W + scale B A) for every projection.

        `adapters` are the whole tensors by name, since under ZeRO-3 this module holds shards.
        """
        whole = {name: adapters[name].detach().float().cpu() for name in ADAPTERS}
        for expert in range(self.count):
            gate_up, down = (
                self.get_buffer(f"{name}_proj")[expert].float().cpu()
                + self.scale * whole[f"{name}_b"][expert] @ whole[f"{name}_a"][expert]
                for name in ("gate_up", "down")
            )
            gate, up = gate_up.chunk(2)
            yield expert_name(expert, "gate_proj"), gate
            yield expert_name(expert, "up_proj"), up
            yield expert_name(expert, "down_proj"), down
