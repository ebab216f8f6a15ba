"""Unrolls the draft chains of all anchors, as the engine computes them.

A chain starts at an anchor i. Depth 0 reads the target's states at i and token t_{i+1}. Depth s
reads the chain's own state of depth s-1 and token t_{i+1+s}, at position i+s. In the engine's
cache, slots up to i hold depth-0 keys (computed from the target's states) and slots i+1..i+s the
chain's own keys, so the query of depth s at i attends to

    the depth-0 keys j <= i of its sequence      computed once, read at every depth
    its own chain's keys of depths 1..s

The parts are merged by their log-sum-exps, so no score matrix over all depths is built. Only the
first part depends on the device (layers/prefix_attention.py). Logged tokens are read (teacher
forcing), since the engine discards a chain after a rejected token.

    slots = Slots(token_ids_BT=..., inputs_BTX=..., sequence_BT=..., position_BT=..., anchor_BT=...)
    anchors_N, u = unroll_anchors(chain, ends, slots, depth=4)
    head.logits(u[s])            # for the tokens at i+2+s, where valid_BT(sequence_BT, s)

Shapes: B rows, T slots of a row, P slots that hold a token (in all rows together), N anchors, X
values per token that a drafter reads, H hidden, A heads, D dims of a query or key, V dims of a
value, S own keys of an anchor.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from outrider.speculators.heads import TargetEnds
from outrider.speculators.layers.prefix_attention import Attend, Span, prefix_attention


class Chain(Protocol):
    """A layer that drafts token by token, attending to prefix and chain."""

    width: int
    """Width H of the states that the head reads."""
    softmax_scale: float
    """Scale of the attention scores."""

    def first_state(self, inputs_NX: Tensor) -> Tensor:
        """The state that depth 0 reads, computed from the target's states."""

    def inputs(self, embedding: Tensor, state: Tensor, position: Tensor) -> Tensor:
        """Layer input x [N, ...], given the next embedding, state and position."""

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [A, N, D], values [A, N, V]."""

    def finish_layer(self, x_NX: Tensor, attended_ANV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next depth's state and the head's input [N, H]."""


@dataclass(frozen=True)
class Slots:
    """The slots of B rows: what a drafter reads, and where its chains start."""

    token_ids_BT: Tensor
    inputs_BTX: Tensor
    """The target's states that the drafter reads."""
    sequence_BT: Tensor
    """Number of the slot's sequence, contiguous within a row; -1 for padding."""
    position_BT: Tensor
    """Position in the sequence, from 0."""
    anchor_BT: Tensor
    """Whether a chain starts at the slot."""


def valid_BT(sequence_BT: Tensor, depth: int) -> Tensor:
    """Mask of slots i with a token i+2+depth for u[depth][i] to predict."""
    reach = 2 + depth
    valid = torch.zeros_like(sequence_BT, dtype=torch.bool)
    if reach < sequence_BT.shape[1]:
        here = sequence_BT[:, :-reach]
        there = sequence_BT[:, reach:]
        valid[:, :-reach] = (here == there) & (here >= 0)
    return valid


class Cache(NamedTuple):
    """The keys and values that a depth attends to."""

    prefix: tuple[Tensor, Tensor]
    """Keys [A, P, D] and values [A, P, V] of depth 0."""
    keys: tuple[Tensor, ...] = ()
    """The chains' own keys, [A, N or 1, D] of each depth from 1."""
    values: tuple[Tensor, ...] = ()


def unroll_anchors(
    chain: Chain,
    ends: TargetEnds,
    slots: Slots,
    depth: int,
    *,
    mask_token: int | None = None,
    recompute: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Returns flat anchor indices [N] into B*T and states u[s] [N, H].

    Every anchor must be valid at depth 0.
    A chain that runs past the end of its sequence repeats the last token; its states there are
    meaningless and not read (`valid_BT`).

    After depth 0, a parallel drafter reads `mask_token` instead of a draft. Its inputs at these
    depths are one row [1, ...] shared by all anchors, which differ only in position.

    With `recompute`, autograd keeps the inputs, queries, keys and values of every depth, and
    backward recomputes projections, attention and MLP. Gradients are the same.
    """
    inputs_BTX = slots.inputs_BTX
    sequence_BT = slots.sequence_BT
    device = inputs_BTX.device
    slots_P, anchors_N, anchor_place_N, attend_prefix = unroll_row(
        sequence_BT, slots.anchor_BT, device
    )
    if not len(anchors_N):
        return anchors_N, [inputs_BTX.new_zeros(0, chain.width, dtype=ends.dtype)] * depth
    token = slots.token_ids_BT.flatten()
    position = slots.position_BT.flatten()
    last_of_sequence = _last_slots(sequence_BT).to(device)

    def next_embedding(slots: Tensor, s: int) -> Tensor:
        # Past the end of its sequence a chain repeats the last token; nothing reads the result.
        return ends.embed(token[torch.minimum(slots + 1 + s, last_of_sequence[slots])])

    def project_tokens() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first_PH = chain.first_state(inputs_BTX.flatten(0, 1)[slots_P].to(ends.dtype))
        x_PH = chain.inputs(next_embedding(slots_P, 0), first_PH, position[slots_P])
        q_APD, key_APD, value_APV = chain.project(x_PH, position[slots_P])
        return x_PH[anchor_place_N], q_APD[:, anchor_place_N], key_APD, value_APV

    def project(state_NH: Tensor, s: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if mask_token is None:
            embedding_NH = next_embedding(anchors_N, s)
        else:
            embedding_NH = ends.embed(token.new_full((1,), mask_token))
        # The engine advances the position by one with every draft (vLLM 0.32:
        # v1/spec_decode/llm_base_proposer.py, `eagle_step_update_slot_mapping_and_metadata`).
        x_NH = chain.inputs(embedding_NH, state_NH, position[anchors_N] + s)
        return x_NH, *chain.project(x_NH, position[anchors_N] + s)

    def finish(x_NH: Tensor, q_AND: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        out_ANV, log_sum_exp_AN = attend_prefix(q_AND, *cache.prefix, chain.softmax_scale)
        return chain.finish_layer(
            x_NH,
            merge_attention(
                prefix_ANV=out_ANV,
                log_sum_exp_AN=log_sum_exp_AN,
                q_AND=q_AND,
                keys=cache.keys,
                values=cache.values,
                scale=chain.softmax_scale,
            ),
        )

    # With `recompute`, backward recomputes each part from its arguments.
    run: Callable[..., Any] = operator.call
    if recompute and torch.is_grad_enabled():
        # No layer has dropout, so there is no random state to restore.
        run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    x_NH, q_AND, key_APD, value_APV = run(project_tokens)
    cache = Cache(prefix=(key_APD, value_APV))
    state_NH, u_NH = run(finish, x_NH, q_AND, cache)
    states = [u_NH]
    for s in range(1, depth):
        x_NH, q_AND, key_AND, value_ANV = run(project, state_NH, s)
        cache = cache._replace(keys=(*cache.keys, key_AND), values=(*cache.values, value_ANV))
        state_NH, u_NH = run(finish, x_NH, q_AND, cache)
        states.append(u_NH)
    return anchors_N, states


class Row(NamedTuple):
    """The packed sequences of a batch and the anchors in them."""

    slots_P: Tensor
    """Flat indices into B*T of the slots that hold a token."""
    anchors_N: Tensor
    """Flat indices into B*T of the anchors."""
    anchor_place_N: Tensor
    """Index of each anchor among the P tokens."""
    attend_prefix: Attend
    """Attention of each anchor over its prefix; needs at least one anchor."""


def unroll_row(sequence_BT: Tensor, anchor_BT: Tensor, device: torch.device) -> Row:
    """Token slots, anchors, and the anchors' prefix attention, all on `device`."""
    slots_P = (sequence_BT.flatten() >= 0).nonzero().squeeze(1)
    anchors_N = anchor_BT.flatten().nonzero().squeeze(1)
    place_P = torch.full_like(sequence_BT.flatten(), -1)
    place_P[slots_P] = torch.arange(len(slots_P), device=slots_P.device)
    place_N = place_P[anchors_N].to(device)
    spans = _spans(sequence_BT, anchor_BT)
    attend = prefix_attention(place_N, spans, len(slots_P))
    return Row(slots_P.to(device), anchors_N.to(device), place_N, attend)


def merge_attention(
    *,
    prefix_ANV: Tensor,
    log_sum_exp_AN: Tensor,
    q_AND: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scale: float,
) -> Tensor:
    """Merges each anchor's own keys into its attention over the prefix.

    `keys` [A, N, D] and `values` [A, N, V] have one element per own key; N is 1 if all anchors
    share it.
    """
    if not keys:
        return prefix_ANV
    # The prefix's part of the softmax denominator is exp(log_sum_exp), so that log-sum-exp is one
    # more score, and the prefix's attention is its value.
    score_ANS = torch.stack([(q_AND * key).sum(-1) for key in keys], dim=-1).float() * scale
    # The same combination by log-sum-exps as vLLM's merge_attn_states.py (arXiv:2501.01005, section
    # 2.2), in float32, because exp turns a rounding error of a score into a relative error of its
    # weight.
    share_ANS = (
        torch.cat([log_sum_exp_AN[..., None], score_ANS], dim=-1).softmax(-1).to(prefix_ANV.dtype)
    )
    merged = prefix_ANV * share_ANS[..., :1]
    for s, value_ANV in enumerate(values):
        merged = merged + value_ANV * share_ANS[..., s + 1 : s + 2]
    return merged


def _spans(sequence_BT: Tensor, anchor_BT: Tensor) -> list[Span]:
    """Spans of the sequences that contain anchors, over all rows in order."""
    spans = []
    tokens = 0
    anchors = 0
    for row, anchor_row in zip(sequence_BT.cpu(), anchor_BT.cpu(), strict=True):
        numbers, lengths = row.unique_consecutive(return_counts=True)
        for number, piece in zip(numbers.tolist(), anchor_row.split(lengths.tolist()), strict=True):
            if number < 0:
                continue
            chosen = int(piece.sum())
            if chosen:
                spans.append(Span(tokens, tokens + len(piece), anchors, anchors + chosen))
            tokens = tokens + len(piece)
            anchors = anchors + chosen
    return spans


def _last_slots(sequence_BT: Tensor) -> Tensor:
    """Flat index of the last slot of each slot's sequence."""
    _, lengths = sequence_BT.flatten().unique_consecutive(return_counts=True)
    # Adjacent rows may share a sequence number (-1 or reused), so runs are cut at row ends.
    last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
    slot = torch.arange(last.numel(), device=last.device)
    row_end = (slot // sequence_BT.shape[1] + 1) * sequence_BT.shape[1] - 1
    return torch.minimum(last, row_end)
