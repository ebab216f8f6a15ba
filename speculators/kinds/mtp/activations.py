"""Bytes that the unroll of an MTP layer keeps for backward, counted from its operations.

    row = RowShape.of_sequences([(1200, 300), (800, 500)])      # (tokens, anchors) of each sequence
    size.activations(row, depth=4, value_bytes=2, ...).saved_bytes()

Counted are the distinct tensors that autograd holds when forward ends, weights excluded, from
unroll.py, mtp/layer.py and deepseek_layer.py. A test hooks autograd and compares. No torch.

Widths: H hidden, Q and C ranks of queries and of keys and values, A heads, D and V widths of a key
and of a value head, R rope dims, X experts, F their intermediate size, k experts of a token. `b` is
the bytes of a value, 2 in bf16 or 4 in float32. A norm keeps its input in float32: in float32 that
is the value itself, in bf16 one more copy of 4 bytes.
"""

import dataclasses

from outrider.speculators.kinds.mtp.widths import MTPWidths
from outrider.speculators.kinds.protocol import Device, RowShape, TrainedParameters

DENSE_EXPERTS = 8
"""Up to this many experts, every token goes through all of them (`Experts.DENSE_UP_TO`)."""


@dataclasses.dataclass(frozen=True)
class MTPActivations:
    """A row unrolled to `depth` drafts with values of `b` bytes (2 or 4)."""

    size: MTPWidths
    row: RowShape
    depth: int
    b: int
    device: Device = "cpu"
    trained_parameters: TrainedParameters = "all"
    lora_rank: int = 0
    recompute: bool = False

    def recomputed(self) -> "MTPActivations":
        """The same with every depth computed again in backward."""
        return dataclasses.replace(self, recompute=True)

    def saved_bytes(self) -> int:
        """Bytes kept for backward, all depths."""
        if self.recompute:
            # A depth's parts are computed again from its state, input, queries, keys and values.
            later = self.last_depth_bytes() + self.row.anchors * self.b * self.size.hidden
            first = self.last_depth_bytes()
            first += (self.row.tokens - self.row.anchors) * self._keys_and_values
            return first + (self.depth - 1) * later
        first = self.row.tokens * self._first_input()
        deeper = sum(self.row.anchors * self._deeper_input(s) for s in range(1, self.depth))
        return first + deeper + self.depth * self.last_depth_bytes()

    def last_depth_bytes(self) -> int:
        """Part of one depth that backward frees first: attention over the prefix, and MLP."""
        if self.recompute:
            width = self.b * self.size.hidden + self._keys + self._keys_and_values
            return self.row.anchors * width
        return self._attention_and_mlp()

    def again_bytes(self) -> int:
        """The larger part of a depth, and gradients of keys and values that wait for depth 0."""
        if not self.recompute:
            return 0
        row, chain = self.row, self._deeper_input(self.depth - 1) - self._projected()
        finish = self._attention_and_mlp() + row.anchors * chain
        if self.device == "cuda":  # flex keeps the query, which exists anyway
            finish -= row.anchors * self._keys
        project = max(row.tokens * self._first_input(), row.anchors * self._projected())
        return (row.tokens + row.anchors) * self._keys_and_values + max(finish, project)

    def _attention_and_mlp(self) -> int:
        return (
            self.row.pairs * self._pair()
            + self.row.anchors * self._finish()
            + self._copies_of_weights()
        )

    def attention_scratch(self, value_bytes: int) -> int:
        """Attention's backward: gradients of probabilities, in float32 too, and of scores."""
        if self.device == "cuda":
            return 0
        return (8 + value_bytes) * self.size.heads * self.row.largest_pairs

    def backward_scratch(self) -> int:
        """Attention's, or gradients of the experts' outputs in the tokens' and the experts' order.

        They are gone when the next part is computed again.
        """
        routed = 0 if self._dense else self.size.experts_per_token * bool(self.size.experts)
        outputs = 2 * self.b * self.size.hidden * routed * self.row.anchors
        return max(self.attention_scratch(self.b), outputs)

    def _norm(self, width: int) -> int:
        """RMSNorm of an input with a gradient: wide input, 1/rms, value before the weight."""
        return 4 * width + 4 + self.b * width

    @property
    def _keys(self) -> int:
        return self.b * self.size.heads * (self.size.nope_dim + self.size.rope_dim)

    @property
    def _values(self) -> int:
        return self.b * self.size.heads * self.size.value_dim

    @property
    def _keys_and_values(self) -> int:
        return self._keys + self._values

    def _first_input(self) -> int:
        """A token at depth 0: norms of inputs without gradient, eh_proj's input, projections."""
        return 4 * self.b * self.size.hidden + self._project()

    def _deeper_input(self, depth: int) -> int:
        """An anchor at depth 1 and beyond: the state has a gradient; attention over the chain."""
        share = (4 + (self.b if self.b < 4 else 0)) * self.size.heads * (depth + 1)
        return self._projected() + self._keys + share + self._values

    def _projected(self) -> int:
        """The same up to queries, keys and values."""
        s, b = self.size, self.b
        return b * s.hidden + self._norm(s.hidden) + 2 * b * s.hidden + self._project()

    def _project(self) -> int:
        """Input norm, both ranks and norms, rotary tables, keys, keys with values."""
        s, b = self.size, self.b
        found = self._norm(s.hidden) + b * s.hidden
        if s.q_rank is not None:
            found += self._norm(s.q_rank) + b * s.q_rank
        found += self._norm(s.kv_rank) + b * s.kv_rank + (4 * s.rope_dim if b == 4 else 0)
        found += 4 * s.rope_dim
        return found + self._keys_and_values

    def _pair(self) -> int:
        """On a CPU scores, probabilities in float32 and bf16, and a mask; flex keeps none."""
        if self.device == "cuda":
            return 0
        return self.size.heads * (8 + (self.b if self.b < 4 else 0)) + 1

    def _finish(self) -> int:
        """An anchor at a depth: scaled query, log-sum-exp, o_proj's input, norms, MLP."""
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
        # Tokens sorted by expert and back, then weighted.
        routed = 16 + b * s.hidden + 3 * b * width + b
        if self.trained_parameters != "non_routed":
            # Trained weights keep their inputs.
            routed += (
                b * s.hidden
                + b * width
                + (2 * b * self.lora_rank if self.trained_parameters == "lora" else 0)
            )
        return router + shared + k * routed

    def _copies_of_weights(self) -> int:
        """Per depth: the router's weights in float32; with few experts a copy of `down_proj`."""
        s = self.size
        router = 4 * s.router if self.b < 4 else 0
        return router + (
            self.b * s.experts * s.expert_intermediate * s.hidden if self._dense else 0
        )
