"""Exact replay: expected engine steps of a logged response under a speculator.

Rejection sampling preserves the target's distribution. So, given a logged response, the draft at
position j after anchor t is accepted with a known probability, independently of the others:

    a[t, j] = min(1, q_j(x) / p(x))     x the logged token at t + j, p the target's distribution,
                                        q_j the draft's
    a[t, j] = 1 if x is the argmax of q_j else 0      for greedy drafts, or a greedy target

Engine steps form a Markov chain on anchors (an anchor is the last known token when a step starts):
from t the chain advances j + 1 tokens with probability a[t,1] ... a[t,j] (1 - a[t,j+1]), and k + 1
tokens with probability a[t,1] ... a[t,k]. `replay_chain` computes the visit probabilities v of the
anchors. Their sum is the expected number of steps, and every rate that the engine reports follows
from them. Weighting all anchors equally was up to 14 % off on nano R1's chats, because steps start
where drafts were rejected, which is where drafting is hard.

    python -m pytest tests/speculators/test_acceptance.py      # simulates rejection sampling

Shapes: B rows, T positions, H hidden size, V vocabulary, D draft vocabulary, N anchors in a flat
list, R responses, A anchors of a response (padded), K depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.heads import DraftHead

GREEDY_BELOW = 1e-5
"""Below this temperature, decoding is greedy, as in vLLM's sampler (`_SAMPLING_EPS`)."""

MASK_BITS = 32
"""Tokens in a word of a grammar's mask, as in vLLM's bitmasks."""

FORBIDDEN = -1e4
"""Logit of tokens that a grammar forbids. Their probability is 0 in float32 at every usual
temperature, and 0 times a finite logit is 0; vLLM's -inf would give NaN."""


def mask_forbidden_tokens(logits_NV: Tensor, masks_MW: Tensor, index_N: Tensor) -> Tensor:
    """Returns a copy of the logits, FORBIDDEN where mask `index_N` of `masks_MW` has a 0.

    Rows with a negative index are unchanged. Bit i of word w is token 32 w + i.
    """
    rows = (index_N >= 0).nonzero()[:, 0]
    bytes_RB = masks_MW[index_N[rows]].view(torch.uint8)  # little-endian, as all supported CPUs
    bit = torch.arange(8, dtype=torch.uint8, device=masks_MW.device)
    allowed_RV = ((bytes_RB[..., None] >> bit) & 1).flatten(1)[:, : logits_NV.shape[-1]].bool()
    allowed_NV = logits_NV.clone()
    allowed_NV[rows] = logits_NV[rows].masked_fill(~allowed_RV, FORBIDDEN)
    return allowed_NV


def target_distribution(
    logits_NV: Tensor, temperature_N: Tensor, top_p_N: Tensor, top_k_N: Tensor | None = None
) -> Tensor:
    """The distribution that vLLM samples from: temperature, then top_k, then top_p, renormalized.

    As in vLLM's `apply_top_k_top_p_pytorch`, tokens less likely than the top_k-th are dropped (0:
    no limit). The rest is renormalized, and tokens are dropped in ascending order of probability
    while their cumulative probability is at most 1 - top_p; the most likely one is always kept. At
    temperature 0 the result is one-hot on the argmax.
    """
    logits_NV = logits_NV.float()
    greedy_N = temperature_N < GREEDY_BELOW
    scaled_NV = logits_NV / torch.where(greedy_N, 1.0, temperature_N)[:, None]
    # Ascending, as in vLLM 0.32 (v1/sample/ops/topk_topp_sampler.py:494), so that equal logits are
    # cut in the same order.
    ordered_NV, order_NV = scaled_NV.sort(dim=-1)
    if top_k_N is not None:
        vocabulary = logits_NV.shape[-1]
        kept_N = torch.where(top_k_N < 1, vocabulary, top_k_N).clamp(max=vocabulary).long()
        # Compared by value, not by rank: tokens that tie with the top_k-th stay, as in
        # topk_topp_sampler.py:501.
        least_N1 = ordered_NV.gather(-1, (vocabulary - kept_N)[:, None])
        ordered_NV = ordered_NV.masked_fill(ordered_NV < least_N1, float("-inf"))
    dropped_NV = ordered_NV.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p_N[:, None]
    # The most likely token stays even with a top_p of 0 (topk_topp_sampler.py:510).
    dropped_NV[:, -1] = False
    kept_NV = torch.empty_like(scaled_NV).scatter_(
        -1, order_NV, ordered_NV.masked_fill(dropped_NV, float("-inf"))
    )
    # vLLM divides a greedy request by 1 instead of 0, then takes the argmax
    # (v1/sample/sampler.py:238).
    one_hot_NV = F.one_hot(logits_NV.argmax(dim=-1), logits_NV.shape[-1]).to(kept_NV.dtype)
    return torch.where(greedy_N[:, None], one_hot_NV, kept_NV.softmax(dim=-1))


def logged_token_probability(
    logits_NV: Tensor,
    token_N: Tensor,
    temperature_N: Tensor,
    top_p_N: Tensor,
    top_k_N: Tensor | None = None,
) -> Tensor:
    """The target's probability p(x) of the logged tokens.

    If rounding puts a logged token outside top_k or top_p, returns its probability before the cut.
    """
    p_NV = target_distribution(logits_NV, temperature_N, top_p_N, top_k_N)
    p_N = p_NV.gather(-1, token_N[:, None])[:, 0]
    scaled_NV = (
        logits_NV.float() / torch.where(temperature_N < GREEDY_BELOW, 1.0, temperature_N)[:, None]
    )
    before_cut_N = scaled_NV.softmax(dim=-1).gather(-1, token_N[:, None])[:, 0]
    return torch.where(p_N > 0, p_N, before_cut_N)


def accept_probability(
    draft_logits_ND: Tensor,
    token_N: Tensor,
    temperature_N: Tensor,
    p_N: Tensor | None = None,
    *,
    probabilistic: bool = False,
    known_N: Tensor | None = None,
) -> Tensor:
    """The probability a that each draft is accepted, given the logged token.

    `token_N` are the logged tokens' ids in the draft vocabulary. `known_N` is False where the token
    is outside that vocabulary; no draft is accepted there. `p_N`, the target's probability of the
    logged token, is needed only for probabilistic drafts, which are sampled from the draft's logits
    at the request's temperature, without top_p, as in vLLM (`compute_probs_and_sample_next_token`).
    """
    # An argmax draft d is accepted with probability p(d). Otherwise vLLM draws from p without d
    # (v1/sample/rejection_sampler.py, `sample_recovered_tokens_kernel`), so the logged token is d
    # if and only if d was accepted.
    hit_N = (draft_logits_ND.argmax(dim=-1) == token_N).to(torch.float64)
    if known_N is not None:
        hit_N = hit_N * known_N
    if not probabilistic:
        return hit_N
    if p_N is None:
        raise ValueError(
            "probabilistic drafts need p_N, the target's probability of the logged tokens"
        )
    greedy_N = temperature_N < GREEDY_BELOW
    scaled_ND = draft_logits_ND.float() / torch.where(greedy_N, 1.0, temperature_N)[:, None]
    q_N = scaled_ND.softmax(dim=-1).gather(-1, token_N[:, None])[:, 0].double()
    if known_N is not None:
        q_N = q_N * known_N
    # P(draft x is drawn and accepted) / p(x) = q(x) min(1, p(x) / q(x)) / p(x). The acceptance rule
    # is that of Leviathan et al. (arXiv:2211.17192, section 2.3) and of rejection_sampler.py:884.
    ratio_N = (q_N / p_N.double().clamp_min(torch.finfo(torch.float32).tiny)).clamp(max=1.0)
    return torch.where(greedy_N, hit_N, ratio_N)


@torch.no_grad()
def accept_matrix(
    *,
    states: Sequence[Tensor],
    head: DraftHead,
    lm_head_VH: Tensor,
    token_ids_BT: Tensor,
    hidden_BTH: Tensor,
    row_N: Tensor,
    anchor_N: Tensor,
    last_N: Tensor,
    temperature_N: Tensor,
    top_p_N: Tensor,
    top_k_N: Tensor | None = None,
    probabilistic: bool = False,
    first_N: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Acceptance probabilities a_NK of the anchors (row_N, anchor_N).

    An anchor is the index t >= 1 of the last known token in row `row_N`. `states[s]` [N, H], from
    `Drafter.unroll`, predicts the token at t + 1 + s; the unroll's anchor i is t - 1. `head`
    computes the draft's logits; `lm_head_VH` and `hidden_BTH` give the target's. `last_N` is the
    index of the response's last token; drafts past it have a = 0. Logits are computed for `chunk`
    anchors at a time, which limits memory to chunk x V. `first_N` is filled with the probability
    of each anchor's most likely first draft.
    """
    # In float64, because `replay_chain` adds up one term per token of the response, up to tens of
    # thousands for R1.
    a_NK = torch.zeros(len(anchor_N), len(states), dtype=torch.float64, device=token_ids_BT.device)
    for j, u_NH in enumerate(states, start=1):
        # A draft past the response has no logged token that could show whether it was accepted.
        inside_M = (anchor_N + j <= last_N).nonzero()[:, 0]
        for part in inside_M.split(chunk):
            row = row_N[part]
            index = anchor_N[part] + j
            token = token_ids_BT[row, index].long()
            temperature = temperature_N[part]
            p = None
            if probabilistic:
                # The target's state at t + j - 1 predicts the token at t + j.
                logits = F.linear(hidden_BTH[row, index - 1].to(lm_head_VH.dtype), lm_head_VH)
                top_k = None if top_k_N is None else top_k_N[part]
                p = logged_token_probability(
                    logits_NV=logits,
                    token_N=token,
                    temperature_N=temperature,
                    top_p_N=top_p_N[part],
                    top_k_N=top_k,
                )
            draft_token, known = head.from_target(token)
            draft_logits = head.logits(u_NH[part])
            if j == 1 and first_N is not None:
                first_N[part] = draft_logits.float().softmax(dim=-1).amax(dim=-1)
            a_NK[part, j - 1] = accept_probability(
                draft_logits,
                draft_token,
                temperature,
                p,
                probabilistic=probabilistic,
                known_N=known,
            )
    return a_NK


@dataclass(frozen=True)
class ReplayChain:
    """Expected counts for R responses and every k from 1 to K.

    tokens_R       tokens of the response except the first, which comes from the prefill
    steps_RK       [r, k-1] expected engine steps (the engine's `num_drafts`)
    accepted_RKK   [r, k-1, j-1] expected steps whose drafts 1..j were all accepted
                   (`num_accepted_tokens_per_pos`); drafts past the end of the response do not
                   count here, though the engine counts them if they are accepted
    offered_RKK    [r, k-1, j-1] expected steps whose drafts 1..j-1 were all accepted and whose
                   draft j is inside the response
    visits_RAK     v: probability that a step starts at each anchor
    """

    tokens_R: Tensor
    steps_RK: Tensor
    accepted_RKK: Tensor
    offered_RKK: Tensor
    visits_RAK: Tensor


@torch.no_grad()
def replay_chain(a_RAK: Tensor, anchors_R: Tensor) -> ReplayChain:
    """Computes the visit probabilities of every response's anchors.

    Anchor 0 is the response's first token; a response of n tokens has n - 1 anchors (`anchors_R`).
    """
    responses, anchors, depth = a_RAK.shape
    device = a_RAK.device
    index_A = torch.arange(anchors, device=device)
    j_K = torch.arange(1, depth + 1, device=device)
    inside_RAK = (index_A[None, :, None] + j_K) <= anchors_R[:, None, None]
    # A step that would go past the end stops there: its drafts outside count as rejected.
    a_RAK = a_RAK.double() * inside_RAK
    # A product, since a[t, j] is conditional on the acceptance of the drafts before j.
    reach_RAK = a_RAK.cumprod(dim=-1)
    before_RAK = torch.cat([torch.ones_like(reach_RAK[..., :1]), reach_RAK[..., :-1]], dim=-1)

    # advance_AMRK[:, m - 1, :, k - 1]: probability that a step with k drafts advances by m tokens.
    # For m <= k, draft m is rejected; for m = k + 1, none is.
    advance_AMRK = torch.zeros(
        anchors, depth + 1, responses, depth, dtype=torch.float64, device=device
    )
    for k in range(1, depth + 1):
        advance_AMRK[:, :k, :, k - 1] = (before_RAK - reach_RAK)[..., :k].permute(1, 2, 0)
        advance_AMRK[:, k, :, k - 1] = reach_RAK[..., k - 1].T

    # Renewal equation: a step that starts at t and advances by m tokens starts the next at t + m.
    v_ARK = torch.zeros(anchors + depth + 1, responses, depth, dtype=torch.float64, device=device)
    if anchors:
        v_ARK[0] = 1.0
    for t in range(anchors):
        # The engine always delivers one token after the accepted drafts, so m >= 1 and no term
        # refers to t itself: one pass solves the equation.
        v_ARK[t + 1 : t + depth + 2] += v_ARK[t] * advance_AMRK[t]
    visits_RAK = v_ARK[:anchors].transpose(0, 1) * (
        index_A[None, :, None] < anchors_R[:, None, None]
    )

    # [k - 1, j - 1]: position j exists if k tokens are drafted.
    drafted_KK = (j_K[None, :] <= j_K[:, None]).double()
    return ReplayChain(
        tokens_R=anchors_R.double(),
        steps_RK=visits_RAK.sum(dim=1),
        accepted_RKK=torch.einsum("rak,raj->rkj", visits_RAK, reach_RAK) * drafted_KK,
        offered_RKK=torch.einsum("rak,raj->rkj", visits_RAK, before_RAK * inside_RAK) * drafted_KK,
        visits_RAK=visits_RAK,
    )


def pad_anchors(a_NK: Tensor, anchors_R: Tensor) -> Tensor:
    """Pads a_NK, with `anchors_R` consecutive anchors per response, to a_RAK."""
    a_RAK = torch.zeros(
        len(anchors_R),
        int(anchors_R.max()) if len(anchors_R) else 0,
        a_NK.shape[1],
        dtype=a_NK.dtype,
        device=a_NK.device,
    )
    inside_RA = torch.arange(a_RAK.shape[1], device=a_NK.device)[None] < anchors_R[:, None]
    a_RAK[inside_RA] = a_NK
    return a_RAK
