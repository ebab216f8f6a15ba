"""Parameters, memory and FLOPs of a P-EAGLE head.

    size = ParallelSize(EagleShape.read(config, target_config, path))

An EAGLE-3 head's, with two differences: the mask's states are parameters, and every slot but the
first reads the same row, which is projected once for all anchors; only its rotation differs.
"""

import dataclasses
from collections.abc import Sequence

from outrider.speculators.kinds.eagle3.activations import EagleActivations
from outrider.speculators.kinds.eagle3.size import EagleSize
from outrider.speculators.kinds.protocol import Device, RowShape, TrainedParameters


@dataclasses.dataclass(frozen=True)
class ParallelActivations(EagleActivations):
    """A row unrolled to `depth` slots."""

    def _deeper_input(self, depth: int) -> int:
        """An anchor's rotary tables, query, key, and its attention over prefix and own slots."""
        return 4 * self.shape.head_dim + 2 * self._keys + self._share(depth) + self._values

    def _residual(self, depth: int) -> int:
        """Only the first slot's residual stream starts at a state of the anchor's own."""
        return super()._residual(0) if depth == 0 else 0


@dataclasses.dataclass(frozen=True)
class ParallelSize(EagleSize):
    """Parameters by part, memory and FLOPs."""

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part."""
        return super().parts | {"mask": self.shape.states}

    @property
    def used_once(self) -> int:
        """None: every slot after the first reads fc over the mask's states."""
        return 0

    def largest_repeated(self, what: TrainedParameters = "all") -> int:
        """fc is among them."""
        return max(super().largest_repeated(what), self.shape.states * self.shape.hidden)

    def activations(
        self,
        row: RowShape,
        depth: int,
        value_bytes: int,
        device: Device,
        what: TrainedParameters,
        lora_rank: int,
    ) -> ParallelActivations:
        """What the unroll of a row keeps for backward."""
        return ParallelActivations(self.shape, row, depth, value_bytes, device)

    def step_flops(self, depth: int, lengths: Sequence[int], anchors: Sequence[int]) -> float:
        """As an EAGLE-3 head's, without the projections of the later slots."""
        into = sum(out * width for out, width in self._matrices[:-1])
        saved = (depth - 1) * sum(anchors) * into
        return super().step_flops(depth, lengths, anchors) - 2.0 * 3 * saved
