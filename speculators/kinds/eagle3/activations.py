"""Bytes that the unroll of an EAGLE-3 head keeps for backward, counted from its operations.

    size.activations(row, depth=4, value_bytes=2, ...).saved_bytes()

Counted are the distinct tensors that autograd holds when forward ends, weights excluded, from
unroll.py, eagle3/layer.py, llama_attention.py and deepseek_layer.py. A test hooks autograd and
compares. No torch.

Widths: H hidden, S values of the target's states, A heads, D and V widths of a key and of a value
head, F intermediate size. `b` is the bytes of a value, 2 in bf16 or 4 in float32. A norm keeps its
input in float32: in float32 that is the value itself, in bf16 one more copy of 4 bytes.
"""

import dataclasses

from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.protocol import Device, RowShape


@dataclasses.dataclass(frozen=True)
class EagleActivations:
    """A row unrolled to `depth` drafts with values of `b` bytes (2 or 4)."""

    shape: EagleShape
    row: RowShape
    depth: int
    b: int
    device: Device = "cpu"

    def saved_bytes(self) -> int:
        """Bytes kept for backward, all depths."""
        first = self.row.tokens * (self._states() + self._project())
        deeper = sum(self.row.anchors * self._deeper_input(s) for s in range(1, self.depth))
        residual = self.row.anchors * sum(self._residual(s) for s in range(self.depth))
        return first + deeper + residual + self.depth * self.last_depth_bytes()

    def last_depth_bytes(self) -> int:
        """Part of one depth's attention over the prefix and MLP: what backward frees first."""
        return self.row.pairs * self._pair() + self.row.anchors * self._finish()

    def attention_scratch(self, value_bytes: int) -> int:
        """Attention's backward: gradients of probabilities, in float32 too, and of scores."""
        if self.device == "cuda":
            return 0
        return (8 + value_bytes) * self.shape.heads * self.row.largest_pairs

    def backward_scratch(self) -> int:
        """Attention's."""
        return self.attention_scratch(self.b)

    def recomputed(self) -> None:
        """A head keeps a fraction of what an MTP layer keeps."""

    def again_bytes(self) -> int:
        """None."""
        return 0

    def _norm(self, width: int) -> int:
        """RMSNorm of an input with a gradient: wide input, 1/rms, value before the weight."""
        return 4 * width + 4 + self.b * width

    @property
    def _keys(self) -> int:
        return self.b * self.shape.heads * self.shape.key_dim

    @property
    def _values(self) -> int:
        return self.b * self.shape.heads * self.shape.value_dim

    def _states(self) -> int:
        """fc's input; a norm of states without gradient keeps its value before the weight."""
        s, b = self.shape, self.b
        found = b * s.states
        if s.norm_before_fc:
            found += b * s.states + (self._norm(s.states) - b * s.states if s.fc_norm else 0)
        if s.fc_norm:
            found += b * s.states
        return found

    def _project(self) -> int:
        """Norms of embedding and state, the projections' input, rotary tables, keys, values."""
        s, b = self.shape, self.b
        found = 2 * self._norm(s.hidden) + 2 * b * s.hidden
        if s.latent is None:
            return found + 4 * s.head_dim + self._keys + self._values
        q_rank, kv_rank, rope = s.latent["q_lora_rank"], s.kv_rank, s.rope_dim
        if q_rank is not None:
            found += self._norm(q_rank) + b * q_rank
        # The latent's norm reads a part of one projection: in float32 that tensor is kept whole.
        found += self._norm(kv_rank) + b * kv_rank + (4 * rope if b == 4 else 0)
        found += 4 * rope
        return found + self._keys + self._values

    def _residual(self, depth: int) -> int:
        """The state's norm once more, where the residual stream starts at it.

        In float32 it reads the layer's input: at depth 0 a copy for the anchors, then one that is
        kept anyway.
        """
        s = self.shape
        if not s.norm_before_residual:
            return 0
        kept = self._norm(s.hidden)
        if self.b == 4:
            kept += 4 * s.hidden if depth == 0 else -4 * s.hidden
        return kept

    def _deeper_input(self, depth: int) -> int:
        """An anchor at depth 1 and beyond: attention over its own chain besides the projections."""
        return self._project() + self._keys + self._share(depth) + self._values

    def _share(self, depth: int) -> int:
        """Weights of the prefix and of the chain's own keys."""
        return (4 + (self.b if self.b < 4 else 0)) * self.shape.heads * (depth + 1)

    def _pair(self) -> int:
        """On a CPU scores, probabilities in float32 and bf16, and a mask; flex keeps none."""
        if self.device == "cuda":
            return 0
        return self.shape.heads * (8 + (self.b if self.b < 4 else 0)) + 1

    def _finish(self) -> int:
        """An anchor at a depth: scaled query, log-sum-exp, o_proj's input, norms, MLP."""
        s, b = self.shape, self.b
        found = self._keys + 4 * s.heads + self._values * (2 if self.device == "cuda" else 1)
        mlp = 4 * b * s.intermediate
        return found + self._norm(s.hidden) + b * s.hidden + mlp + self._norm(s.hidden)
