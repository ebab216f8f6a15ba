"""What the unroll keeps for backward, in bytes, counted from its operations: no torch, so that a run can be priced anywhere.

    row = RowShape.of_sequences([(1200, 300), (800, 500)])      # (tokens, anchors) of each sequence that shares the row
    saved_bytes(size, row, depth=4, value_bytes=2)

Counted are the distinct tensors that autograd holds when forward has ended, weights aside: what speculators/unroll.py and
deepseek.py give it. A test hooks autograd and compares. Names of widths: H hidden, Q and C ranks of queries and of keys and
values, A heads, D and V dims of a key and of a value head, R rope dims, X experts, F their intermediate size, k experts a token.
`b` is the bytes of a value in bf16 or float32; in float32 a norm's wide copy is the value itself, in bf16 one more of 4 bytes.
"""

import dataclasses
from collections.abc import Iterable

from outrider.speculators.size import MTPSize

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


def saved_bytes(size: MTPSize, row: RowShape, depth: int, value_bytes: int) -> int:
    """Bytes kept for backward when a row has been unrolled to `depth` drafts."""
    first = row.tokens * _first_input(size, value_bytes)
    deeper = sum(row.anchors * _deeper_input(size, s, value_bytes) for s in range(1, depth))
    return first + deeper + depth * last_depth_bytes(size, row, value_bytes)


def last_depth_bytes(size: MTPSize, row: RowShape, value_bytes: int) -> int:
    """The part of it that one depth's attention over the prefix and its MLP hold, which backward frees first."""
    return (
        row.pairs * _pair(size, value_bytes) + row.anchors * _finish(size, value_bytes) + _copies_of_weights(size, value_bytes)
    )


def _norm(width: int, b: int) -> int:
    """RMSNorm of something that has a gradient: the wide input, 1/rms, the value before the weight."""
    return 4 * width + 4 + b * width


def _first_input(s: MTPSize, b: int) -> int:
    """Of each token at depth 0: two norms whose input has no gradient, eh_proj's input, and the projections."""
    return 2 * b * s.hidden + 2 * b * s.hidden + _project(s, b)


def _deeper_input(s: MTPSize, depth: int, b: int) -> int:
    """Of each anchor at depth 1 and beyond: as at depth 0, but the state has a gradient; and attention over the own chain."""
    heads = s.heads
    inputs = b * s.hidden + _norm(s.hidden, b) + 2 * b * s.hidden
    query = b * heads * (s.nope_dim + s.rope_dim)
    share = (4 + (b if b < 4 else 0)) * heads * (depth + 1)
    return inputs + _project(s, b) + query + share + b * heads * s.value_dim


def _project(s: MTPSize, b: int) -> int:
    """The layer's input norm, the two ranks with their norms, rotation tables, keys, and keys and values before they part."""
    found = _norm(s.hidden, b) + b * s.hidden
    if s.q_rank is not None:
        found += _norm(s.q_rank, b) + b * s.q_rank
    found += _norm(s.kv_rank, b) + b * s.kv_rank + (4 * s.rope_dim if b == 4 else 0)
    found += 4 * s.rope_dim
    return found + b * s.heads * (s.nope_dim + s.rope_dim) + b * s.heads * (s.nope_dim + s.value_dim)


def _pair(s: MTPSize, b: int) -> int:
    """Scores and probabilities in float32, the latter in bf16 once more, and a mask."""
    return s.heads * (8 + (b if b < 4 else 0)) + 1


def _finish(s: MTPSize, b: int) -> int:
    """Of each anchor at each depth: scaled query and log-sum-exp, o_proj's input, the norm, the MLP, the final norm."""
    attention = b * s.heads * (s.nope_dim + s.rope_dim) + 4 * s.heads + b * s.heads * s.value_dim
    return attention + _norm(s.hidden, b) + b * s.hidden + _mlp(s, b) + _norm(s.hidden, b)


def _mlp(s: MTPSize, b: int) -> int:
    shared = 4 * b * s.shared_intermediate
    if not s.experts:
        return shared
    k, width = s.experts_per_token, s.expert_intermediate
    wide_input = 4 * s.hidden if b < 4 else 0
    router = wide_input + 4 * s.experts + 8 * k + 4 * k + 4
    if s.experts <= DENSE_EXPERTS:
        routed = 5 * b * s.experts * width + (b if b < 4 else 4) * s.experts
    else:
        # Tokens sorted by expert as they go in, as they come out, and weighted (index_add keeps its source for its shape).
        routed = k * (16 + 3 * b * s.hidden + 4 * b * width + b)
    return router + routed + shared


def _copies_of_weights(s: MTPSize, b: int) -> int:
    """At each depth: the router's weights in float32, and with few experts `down_proj` laid out anew."""
    router = 4 * s.router if b < 4 else 0
    dense = s.experts and s.experts <= DENSE_EXPERTS
    return router + (b * s.experts * s.expert_intermediate * s.hidden if dense else 0)
