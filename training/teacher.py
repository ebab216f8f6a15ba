"""Target distribution as served, with the request's temperature, top_k and top_p.

    # z: logits, overwritten; p: output
    teacher = served_distribution(
        z_CV=z_CV, p_CV=p_CV, token_C=token_C, temperature_C=temperature_C, top_p_C=top_p_C
    )

A logged grammar is part of p: as in vLLM, the tokens that it forbids have no probability, before
temperature and cuts (vllm_hooks/grammar_masks.py).

Where something else shaped the logged tokens (penalties, an unusable grammar), their distribution
p' is not known, and p is one-hot at the logged token x: a hard label. In expectation over x ~ p',
the losses kl and ce of a hard label have the same gradient as KL(p'||q), because E[onehot(x)] = p'
and the gradient q - p is linear in p. lk_alpha becomes -log q(x), whose expectation KL(p'||q) +
H(p') is an upper bound of -log sum_v p' q (Jensen). Only greedy drafts allow hard labels: their
acceptance, 1 if x is the draft, does not depend on p'.

Drafts are accepted against this distribution, so the speculator learns it. p = softmax(logits /
temperature), cut by top_k and top_p and renormalized; one-hot at temperature 0. It equals
`speculators.acceptance.target_distribution` (tested), but rows are rarely sorted in full: the
nucleus is nearly always within the 256 most likely tokens.

Shapes: C rows of a chunk, R rows to cut, V vocabulary, D draft vocabulary, M tokens searched.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.speculators.acceptance import GREEDY_BELOW, mask_forbidden_tokens
from outrider.speculators.heads import DraftHead

NUCLEUS_WITHIN = 256
"""Number of most likely tokens that are searched first for the nucleus.
With 129,280 tokens, a partial sort costs a twentieth of a full one."""


class ServedSampling(NamedTuple):
    """Sampling parameters of the requests of N target tokens, and how the engine drafts."""

    temperature_N: Tensor
    top_p_N: Tensor
    probabilistic: bool
    """True: drafts are sampled from q. False: they are q's argmax.
    As in vLLM, sampling uses the request's temperature, but not its top_k and top_p."""
    top_k_N: Tensor | None = None
    """0: no limit; None: no request has a limit."""
    hard_N: Tensor | None = None
    """Whether p is one-hot at the logged token; None: nowhere."""
    masks_MW: Tensor | None = None
    """Masks of grammars (`acceptance.mask_forbidden_tokens`); None without any."""
    mask_N: Tensor | None = None
    """The mask of each target; negative: none."""

    def masked(self, z_CV: Tensor, chunk: "slice[int, int, None]") -> Tensor:
        """Returns logits [C, V] without the tokens that grammars forbid."""
        if self.masks_MW is None or self.mask_N is None:
            return z_CV
        return mask_forbidden_tokens(z_CV, self.masks_MW, self.mask_N[chunk])

    def draft_temperature(self, chunk: "slice[int, int, None]") -> Tensor | None:
        """Returns the temperature [C] for sampling from q; None for argmax drafts."""
        if not self.probabilistic:
            return None
        temperature_C = self.temperature_N[chunk]
        return torch.where(temperature_C < GREEDY_BELOW, 1.0, temperature_C)


class Teacher(NamedTuple):
    """p of a chunk, with quantities derived from it."""

    p_CV: Tensor
    best_C: Tensor
    """argmax p"""
    negative_entropy_C: Tensor
    """sum_v p log p, in nats"""
    logged_C: Tensor
    """p of the logged token; uncut p if the cut excludes it.
    The token was sampled, so only rounding can exclude it."""


def served_distribution(
    *,
    z_CV: Tensor,
    p_CV: Tensor,
    token_C: Tensor,
    temperature_C: Tensor,
    top_p_C: Tensor,
    top_k_C: Tensor | None = None,
    hard_C: Tensor | None = None,
) -> Teacher:
    """Writes p to `p_CV`; divides z (float32 or float64) by the temperatures."""
    greedy_C = temperature_C < GREEDY_BELOW
    top_k_C = torch.zeros_like(token_C) if top_k_C is None else top_k_C
    # 1 instead of 0 for greedy rows, which are overwritten below, as in vLLM
    # (v1/sample/sampler.py:238).
    z_CV.div_(torch.where(greedy_C, 1.0, temperature_C)[:, None])
    top_C, best_C = z_CV.max(-1)
    torch.softmax(z_CV, -1, out=p_CV)
    log_sum_exp_C = top_C - p_CV.gather(-1, best_C[:, None])[:, 0].log()
    negative_entropy_C = torch.linalg.vecdot(p_CV, z_CV) - log_sum_exp_C
    uncut_C = p_CV.gather(-1, token_C[:, None])[:, 0]
    rows = (((top_p_C < 1) | (top_k_C > 0)) & ~greedy_C).nonzero()[:, 0]
    # The few rows whose nucleus is wider are sorted in full.
    for within in (NUCLEUS_WITHIN, p_CV.shape[1]):
        if len(rows):
            rows = _cut(
                p_CV,
                negative_entropy_C,
                top_p_C=top_p_C,
                top_k_C=top_k_C,
                rows=rows,
                within=min(within, p_CV.shape[1]),
            )
    if greedy_C.any():
        # After the cut, since a one-hot row has no nucleus to search.
        p_CV[greedy_C] = 0.0
        p_CV[greedy_C, best_C[greedy_C]] = 1.0
        negative_entropy_C[greedy_C] = 0.0
    if hard_C is not None and hard_C.any():
        best_C = torch.where(hard_C, token_C, best_C)
        p_CV[hard_C] = 0.0
        p_CV[hard_C, token_C[hard_C]] = 1.0
        negative_entropy_C[hard_C] = 0.0
    logged_C = p_CV.gather(-1, token_C[:, None])[:, 0]
    return Teacher(p_CV, best_C, negative_entropy_C, torch.where(logged_C > 0, logged_C, uncut_C))


def _cut(
    p_CV: Tensor,
    negative_entropy_C: Tensor,
    *,
    top_p_C: Tensor,
    top_k_C: Tensor,
    rows: Tensor,
    within: int,
) -> Tensor:
    """Cuts and renormalizes rows for which `within` tokens suffice; returns the others.

    First, tokens less likely than the top_k-th are dropped. A remaining token is kept if the mass
    of more likely tokens is below top_p times the remaining mass. This is equivalent to vLLM's
    rule, which drops tokens in ascending order while their cumulative mass is at most 1 - top_p.
    """
    share_RM, index_RM = (p_CV if len(rows) == len(p_CV) else p_CV[rows]).topk(within, dim=-1)
    limited_R = top_k_C[rows] > 0
    last_R = top_k_C[rows].clamp(1, within).long() - 1
    limited_R = limited_R & (top_k_C[rows] <= within)
    least_R = torch.where(limited_R, share_RM.gather(-1, last_R[:, None])[:, 0], 0.0)
    among_RM = share_RM >= least_R[:, None]
    mass_R = torch.where(limited_R, (share_RM * among_RM).sum(-1), 1.0)
    # A top_p of 1 keeps all tokens; comparing with the full mass could drop some by rounding.
    nucleus_R = torch.where(top_p_C[rows] < 1, top_p_C[rows] * mass_R, math.inf)
    kept_RM = among_RM & (share_RM.cumsum(-1) - share_RM < nucleus_R[:, None])
    # If top_k exceeds `within`, these tokens do not give the total mass of the top_k tokens.
    known_R = ~among_RM[:, -1] | (~kept_RM[:, -1] & (top_k_C[rows] < 1))
    ends_R = known_R | (within == p_CV.shape[1])
    done = rows[ends_R]
    cut_RM = (share_RM * kept_RM)[ends_R]
    cut_RM = cut_RM / cut_RM.sum(-1, keepdim=True)
    if len(done) == len(p_CV):
        p_CV.zero_()
    else:
        p_CV[done] = 0.0
    p_CV[done[:, None], index_RM[ends_R]] = cut_RM
    negative_entropy_C[done] = torch.special.xlogy(cut_RM, cut_RM).sum(-1)
    return rows[~ends_R]


class DraftTeacher(NamedTuple):
    """The target's distribution over the draft vocabulary, for one chunk."""

    p_CD: Tensor
    """The target's probabilities, against which drafts are accepted."""
    goal_CD: Tensor
    """The distribution that the draft learns: p renormalized over the draft vocabulary."""
    best_C: Tensor
    """argmax p, as an index in the draft vocabulary"""
    negative_entropy_C: Tensor
    """sum_v goal log goal, in nats"""
    logged_C: Tensor
    """The target's probability of the logged token"""
    token_C: Tensor
    """Index of the logged token in the draft vocabulary"""
    known_C: Tensor | None
    """Whether the logged token is in the draft vocabulary; None: it always is"""
    taught_C: Tensor | None
    """Whether p has mass on the draft vocabulary; None: it always does"""


def draft_teacher(teacher: Teacher, head: DraftHead | None, token_C: Tensor) -> DraftTeacher:
    """Restricts `teacher` to the draft vocabulary of `head`, if it has one.

    With D < V tokens, the draft learns the target's distribution renormalized over them (otherwise
    KL and cross-entropy are infinite), but is accepted against the target's probabilities, which
    are not renormalized. Over the full vocabulary, both are the same.
    """
    if head is None or head.target_ids_D is None:
        entropy_C = teacher.negative_entropy_C
        logged_C = teacher.logged_C
        p_CV = teacher.p_CV
        best_C = teacher.best_C
        return DraftTeacher(
            p_CD=p_CV,
            goal_CD=p_CV,
            best_C=best_C,
            negative_entropy_C=entropy_C,
            logged_C=logged_C,
            token_C=token_C,
            known_C=None,
            taught_C=None,
        )
    p_CD = teacher.p_CV[:, head.target_ids_D]
    mass_C = p_CD.sum(-1)
    # tiny instead of 0: such rows are not taught (`taught_C`), but 0 / 0 would spread NaN.
    goal_CD = p_CD / mass_C.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    token_C, known_C = head.from_target(token_C)
    return DraftTeacher(
        p_CD=p_CD,
        goal_CD=goal_CD,
        best_C=p_CD.argmax(-1),
        negative_entropy_C=torch.special.xlogy(goal_CD, goal_CD).sum(-1),
        logged_C=teacher.logged_C,
        token_C=token_C,
        known_C=known_C,
        taught_C=mass_C > 0,
    )
