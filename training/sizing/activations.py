"""What the unroll keeps for backward, in bytes, counted from its operations: no torch, so that a run can be priced anywhere.

    row = RowShape.of_sequences([(1200, 300), (800, 500)])      # (tokens, anchors) of each sequence that shares the row
    Unrolled(size, row, depth=4, b=2).saved_bytes()

Counted are the distinct tensors that autograd holds when forward has ended, weights aside: what speculators/unroll.py and
deepseek.py give it. A test hooks autograd and compares. Names of widths: H hidden, Q and C ranks of queries and of keys and
values, A heads, D and V dims of a key and of a value head, R rope dims, X experts, F their intermediate size, k experts a token.
`b` is the bytes of a value in bf16 or float32; in float32 a norm's wide copy is the value itself, in bf16 one more of 4 bytes.
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from outrider.speculators.size import MTPSize, TrainedParameters

Device = Literal["cpu", "cuda"]
"""A CPU attends over the prefix densely; on a GPU flex attention keeps the output and the log-sum-exp."""

DENSE_EXPERTS = 8
"""Up to so many experts every token goes through all of them (`Experts.DENSE_UP_TO`)."""


@dataclasses.dataclass(frozen=True)
class RowShape:
    """One row of training, as far as memory goes."""

    tokens: int
    """Slots that hold a token."""
    anchors: int
    """Of them, those from which a chain starts."""
    pairs: int
    """(anchor, token) pairs within a sequence, summed over sequences: what attention over the prefix is computed for."""
    largest_pairs: int
    """Those of one sequence."""

    @classmethod
    def of_sequences(cls, sequences: Iterable[tuple[int, int]]) -> "RowShape":
        """Of (tokens, anchors) of each sequence."""
        listed = list(sequences)
        pairs = [tokens * anchors for tokens, anchors in listed] or [0]
        return cls(sum(t for t, _ in listed), sum(a for _, a in listed), sum(pairs), max(pairs))

    @classmethod
    def full(cls, tokens: int) -> "RowShape":
        """The worst that a row can hold: one sequence, all of it response."""
        return cls.of_sequences([(tokens, tokens)])


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """A row unrolled to `depth` drafts with values of `b` bytes (2 or 4)."""

    size: MTPSize
    row: RowShape
    depth: int
    b: int
    device: Device = "cpu"
    trained_parameters: TrainedParameters = "all"
    lora_rank: int = 0

    def saved_bytes(self) -> int:
        """Bytes kept for backward."""
        first = self.row.tokens * self._first_input()
        deeper = sum(self.row.anchors * self._deeper_input(s) for s in range(1, self.depth))
        return first + deeper + self.depth * self.last_depth_bytes()

    def last_depth_bytes(self) -> int:
        """The part of it that one depth's attention over the prefix and its MLP hold: what backward frees first."""
        return (
            self.row.pairs * self._pair()
            + self.row.anchors * self._finish()
            + self._copies_of_weights()
        )

    def attention_scratch(self, value_bytes: int) -> int:
        """Of attention's backward over the longest sequence: the probabilities' gradient, the same in float32, the scores'."""
        return (
            0
            if self.device == "cuda"
            else (8 + value_bytes) * self.size.heads * self.row.largest_pairs
        )

    def _norm(self, width: int) -> int:
        """RMSNorm of something that has a gradient: the wide input, 1/rms, the value before the weight."""
        return 4 * width + 4 + self.b * width

    @property
    def _keys(self) -> int:
        return self.b * self.size.heads * (self.size.nope_dim + self.size.rope_dim)

    @property
    def _values(self) -> int:
        return self.b * self.size.heads * self.size.value_dim

    def _first_input(self) -> int:
        """Of each token at depth 0: two norms whose input has no gradient, eh_proj's input, and the projections."""
        return 4 * self.b * self.size.hidden + self._project()

    def _deeper_input(self, depth: int) -> int:
        """Of each anchor at depth 1 and beyond: as at depth 0, but the state has a gradient; and attention over the own chain."""
        s, b = self.size, self.b
        inputs = b * s.hidden + self._norm(s.hidden) + 2 * b * s.hidden
        share = (4 + (b if b < 4 else 0)) * s.heads * (depth + 1)
        return inputs + self._project() + self._keys + share + self._values

    def _project(self) -> int:
        """The layer's input norm, the two ranks with their norms, rotation tables, keys, and keys and values before they part."""
        s, b = self.size, self.b
        found = self._norm(s.hidden) + b * s.hidden
        if s.q_rank is not None:
            found += self._norm(s.q_rank) + b * s.q_rank
        found += self._norm(s.kv_rank) + b * s.kv_rank + (4 * s.rope_dim if b == 4 else 0)
        found += 4 * s.rope_dim
        return found + self._keys + b * s.heads * (s.nope_dim + s.value_dim)

    def _pair(self) -> int:
        """On a CPU scores and probabilities in float32, the latter in bf16 once more, and a mask; flex attention keeps none."""
        if self.device == "cuda":
            return 0
        return self.size.heads * (8 + (self.b if self.b < 4 else 0)) + 1

    def _finish(self) -> int:
        """Of each anchor at each depth: scaled query and log-sum-exp, o_proj's input, the norm, the MLP, the final norm."""
        s = self.size
        attention = self._keys + 4 * s.heads + self._values * (2 if self.device == "cuda" else 1)
        return (
            attention
            + self._norm(s.hidden)
            + self.b * s.hidden
            + self._mlp()
            + self._norm(s.hidden)
        )

    @property
    def _dense(self) -> bool:
        return 0 < self.size.experts <= DENSE_EXPERTS and self.trained_parameters == "all"

    def _mlp(self) -> int:
        s, b = self.size, self.b
        shared = 4 * b * s.shared_intermediate
        if not s.experts:
            return shared
        k, width = s.experts_per_token, s.expert_intermediate
        wide_input = 4 * s.hidden if b < 4 else 0
        router = wide_input + 4 * s.experts + 8 * k + 4 * k + 4
        if self._dense:
            return router + shared + 5 * b * s.experts * width + (b if b < 4 else 4) * s.experts
        # Tokens sorted by expert as they come out, and weighted (index_add keeps its source for its shape).
        routed = 16 + 2 * b * s.hidden + 3 * b * width + b
        if self.trained_parameters != "non_routed":
            # Weights that are trained want their inputs.
            routed += (
                b * s.hidden
                + b * width
                + (2 * b * self.lora_rank if self.trained_parameters == "lora" else 0)
            )
        return router + shared + k * routed

    def _copies_of_weights(self) -> int:
        """At each depth: the router's weights in float32, and with few experts `down_proj` laid out anew."""
        s = self.size
        router = 4 * s.router if self.b < 4 else 0
        return router + (
            self.b * s.experts * s.expert_intermediate * s.hidden if self._dense else 0
        )
