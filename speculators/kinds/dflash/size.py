"""Parameters, memory and FLOPs of a DFlash head.

    size = DFlashSize(read_shape(config, target_config, path))

Counted as an EAGLE-3 head's, with these differences. The layer is as wide as the state, and norms
queries and keys by head. A token of the context has a key and a value and no query. The mask slots
read one row, which is projected once for all anchors; only its rotation differs.
"""

import dataclasses
from collections.abc import Sequence

from outrider.speculators.kinds.eagle3.activations import EagleActivations
from outrider.speculators.kinds.eagle3.size import EagleSize
from outrider.speculators.kinds.protocol import Device, RowShape, TrainedParameters


@dataclasses.dataclass(frozen=True)
class DFlashActivations(EagleActivations):
    """A row unrolled with a block of `depth` + 1 slots."""

    def saved_bytes(self) -> int:
        """Bytes kept for backward: the context, slot 0 of every anchor, and the mask slots."""
        s, b = self.shape, self.b
        context = self._states() + self._norm(s.hidden) + b * s.hidden + self._key_and_value()
        # The embedding takes no gradient: its norm keeps the value before the weight.
        known = 2 * b * s.hidden + self._key_and_value()
        tables, query_and_key = 4 * s.head_dim, 2 * self._keys
        mask = tables + query_and_key + self._share(self.depth + 1) + self._values
        of_slots = self.row.anchors * (known + self.depth * mask)
        return self.row.tokens * context + of_slots + self.depth * self.last_depth_bytes()

    def _key_and_value(self) -> int:
        """The norm of every key, the rotary tables, the key and the value."""
        s = self.shape
        norms = s.kv_heads * self._norm(s.head_dim)
        return norms + 4 * s.head_dim + self._keys + self._values


@dataclasses.dataclass(frozen=True)
class DFlashSize(EagleSize):
    """Parameters by part, memory and FLOPs."""

    @property
    def used_once(self) -> int:
        """fc and the norm of the context."""
        return (self.shape.states + 1) * self.shape.hidden

    def activations(
        self,
        row: RowShape,
        depth: int,
        value_bytes: int,
        device: Device,
        what: TrainedParameters,
        lora_rank: int,
    ) -> DFlashActivations:
        """What the unroll of a row keeps for backward."""
        return DFlashActivations(self.shape, row, depth, value_bytes, device)

    def step_flops(self, depth: int, lengths: Sequence[int], anchors: Sequence[int]) -> float:
        """An EAGLE-3 head's, without queries of the context and projections of mask slots."""
        query, key, value = (out * into for out, into in self._matrices[:-1])
        chains = sum(anchors)
        saved = sum(lengths) * query + (depth - 1) * chains * (query + key + value)
        slot_0 = chains * (key + value)
        return super().step_flops(depth, lengths, anchors) - 2.0 * 3 * (saved - slot_0)

    @property
    def _matrices(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of attention's matrices; the output projection is the last."""
        s = self.shape
        query, keys = (s.heads * s.head_dim, s.hidden), (s.kv_heads * s.head_dim, s.hidden)
        return [query, keys, keys, (s.hidden, s.heads * s.head_dim)]

    @property
    def _attention(self) -> int:
        """Its matrices, and the norms of queries and keys."""
        return super()._attention + 2 * self.shape.head_dim
