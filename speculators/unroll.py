"""The training-time test: every draft depth for every position in one pass, as the engine will run them.

A chain starts at an anchor i. Depth 0 reads the target's state h_i and token t_{i+1}; depth s reads the chain's own state u
of depth s-1 and token t_{i+1+s}, at position i+s. In the engine's cache the slots up to i hold depth-0 keys (made from the
target's states) and the slots i+1..i+s the chain's own, so the query of depth s at i attends to

    the depth-0 keys j <= i of its sequence      computed once, read at every depth
    its own chain's keys of depths 1..s

The two parts are attended separately and merged through their log-sum-exps: nothing is ever a matrix over all depths, and
only the first part depends on the device (prefix_attention.py). Tokens are the logged ones: that is teacher forcing along an
accepted chain, which is exactly the case that matters, for a chain with a rejected token is thrown away.

    u = unroll(speculator, ends, token_ids_BT, hidden_BTH, sequence_BT, position_BT, depth=4)
    ends.logits(u[s])[b, i]      # logits of q for the token at index i+2+s, where valid_BT(sequence_BT, s)[b, i]

Shapes: B rows, T slots of a row, P slots that hold a token (in all rows together), N anchors, H hidden, A heads, D dims of a
query or key, V dims of a value, S earlier chain depths.
"""

import torch
from torch import Tensor

from outrider.speculators.layers.deepseek_layer import rotary_tables
from outrider.speculators.layers.mtp_layer import MTPSpeculator, TargetEnds
from outrider.speculators.layers.prefix_attention import Span, prefix_attention


def valid_BT(sequence_BT: Tensor, depth: int) -> Tensor:
    """Which slots i have the token i+2+depth in the same sequence, so that u[depth][i] predicts something that exists."""
    reach = 2 + depth
    valid = torch.zeros_like(sequence_BT, dtype=torch.bool)
    if reach < sequence_BT.shape[1]:
        here, there = sequence_BT[:, :-reach], sequence_BT[:, reach:]
        valid[:, :-reach] = (here == there) & (here >= 0)
    return valid


def unroll(
    speculator: MTPSpeculator,
    ends: TargetEnds,
    token_ids_BT: Tensor,
    hidden_BTH: Tensor,
    sequence_BT: Tensor,
    position_BT: Tensor,
    depth: int,
) -> list[Tensor]:
    """Post-norm states u[s] of shape [B, T, H] for s < depth; zero where `valid_BT(sequence_BT, s)` is false.

    `sequence_BT` numbers the sequence that a slot belongs to, contiguous within a row, -1 for padding; `position_BT` counts
    from 0 in each sequence.
    """
    anchor_BT = valid_BT(sequence_BT, 0)
    anchors_N, states = unroll_anchors(
        speculator, ends, token_ids_BT, hidden_BTH, sequence_BT, position_BT, anchor_BT, depth
    )
    spread = []
    for s, u_NH in enumerate(states):
        keep_N = valid_BT(sequence_BT, s).flatten()[anchors_N]
        out = u_NH.new_zeros(sequence_BT.numel(), u_NH.shape[-1])
        spread.append(
            out.index_copy(0, anchors_N[keep_N], u_NH[keep_N]).view(*sequence_BT.shape, -1)
        )
    return spread


def unroll_anchors(
    speculator: MTPSpeculator,
    ends: TargetEnds,
    token_ids_BT: Tensor,
    hidden_BTH: Tensor,
    sequence_BT: Tensor,
    position_BT: Tensor,
    anchor_BT: Tensor,
    depth: int,
) -> tuple[Tensor, list[Tensor]]:
    """As `unroll`, for the chains of the chosen anchors only: their flat indices [N] into B*T and u[s] of shape [N, H].

    Every anchor must be valid at depth 0. A chain that runs past the end of its sequence repeats the last token; its states
    there mean nothing, nothing else reads them, and `valid_BT` tells which they are.
    """
    arch = speculator.arch
    slots_P = (sequence_BT.flatten() >= 0).nonzero().squeeze(1)
    anchors_N = anchor_BT.flatten().nonzero().squeeze(1)
    if not len(anchors_N):
        return anchors_N, [
            hidden_BTH.new_zeros(0, arch.hidden, dtype=ends.embedding_VH.dtype)
        ] * depth
    token, position = token_ids_BT.flatten(), position_BT.flatten()
    last_of_sequence = _last_slots(sequence_BT)

    def next_embedding(slots: Tensor, s: int) -> Tensor:
        return ends.embed(token[torch.minimum(slots + 1 + s, last_of_sequence[slots])])

    hidden_PH = hidden_BTH.flatten(0, 1)[slots_P].to(ends.embedding_VH.dtype)
    x_PH = speculator.inputs(next_embedding(slots_P, 0), hidden_PH, position[slots_P])
    q_APD, key_APD, value_APV = _project(speculator, x_PH, position[slots_P])

    place_P = torch.full_like(token, -1)
    place_P[slots_P] = torch.arange(len(slots_P), device=token.device)
    anchor_place_N = place_P[anchors_N]
    x_NH, q_AND = x_PH[anchor_place_N], q_APD[:, anchor_place_N]

    attend_prefix = prefix_attention(anchor_place_N, _spans(sequence_BT, anchor_BT), len(slots_P))
    chain_keys, chain_values, states = [], [], []
    for s in range(depth):
        if s:
            x_NH = speculator.inputs(
                next_embedding(anchors_N, s), states[-1], position[anchors_N] + s
            )
            q_AND, key_AND, value_ANV = _project(speculator, x_NH, position[anchors_N] + s)
            chain_keys.append(key_AND)
            chain_values.append(value_ANV)
        prefix = attend_prefix(q_AND, key_APD, value_APV, arch.softmax_scale)
        attended_ANV = _merge_chain(*prefix, q_AND, chain_keys, chain_values, arch.softmax_scale)
        states.append(speculator.norm(speculator.block.finish(x_NH[None], attended_ANV[None])[0]))
    return anchors_N, states


def _project(
    speculator: MTPSpeculator, x_NH: Tensor, position_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rotary = rotary_tables(speculator.arch, position_N[None])
    q, key, value = speculator.block.project(x_NH[None], rotary)
    return q[0], key[0], value[0]


def _merge_chain(
    prefix_ANV: Tensor,
    log_sum_exp_AN: Tensor,
    q_AND: Tensor,
    chain_keys: list[Tensor],
    chain_values: list[Tensor],
    scale: float,
) -> Tensor:
    """Adds the chain's own keys to attention over the prefix: one softmax over both, from the prefix's log-sum-exp."""
    if not chain_keys:
        return prefix_ANV
    score_ANS = torch.stack([(q_AND * key).sum(-1) for key in chain_keys], dim=-1).float() * scale
    share_ANS = (
        torch.cat([log_sum_exp_AN[..., None], score_ANS], dim=-1).softmax(-1).to(prefix_ANV.dtype)
    )
    merged = prefix_ANV * share_ANS[..., :1]
    for s, value_ANV in enumerate(chain_values):
        merged = merged + value_ANV * share_ANS[..., s + 1 : s + 2]
    return merged


def _spans(sequence_BT: Tensor, anchor_BT: Tensor) -> list[Span]:
    """The sequences of all rows in order, with their extents among tokens and among anchors; those without anchors left out."""
    spans, tokens, anchors = [], 0, 0
    for row, anchor_row in zip(sequence_BT.cpu(), anchor_BT.cpu(), strict=True):
        numbers, lengths = row.unique_consecutive(return_counts=True)
        for number, piece in zip(numbers.tolist(), anchor_row.split(lengths.tolist()), strict=True):
            if number < 0:
                continue
            chosen = int(piece.sum())
            if chosen:
                spans.append(Span(tokens, tokens + len(piece), anchors, anchors + chosen))
            tokens, anchors = tokens + len(piece), anchors + chosen
    return spans


def _last_slots(sequence_BT: Tensor) -> Tensor:
    """For every slot, flat, the flat index of the last slot of its sequence."""
    _, lengths = sequence_BT.flatten().unique_consecutive(return_counts=True)
    # Rows may meet with the same number (-1, or an id used twice); a row's end closes a sequence too.
    last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
    slot = torch.arange(last.numel(), device=last.device)
    row_end = (slot // sequence_BT.shape[1] + 1) * sequence_BT.shape[1] - 1
    return torch.minimum(last, row_end)
