"""The target's distribution as the customer's requests are served: what drafts are accepted against, and so what they learn.

    teacher = served_distribution(z_CV, p_CV, token_C, temperature_C, top_p_C)      # z: logits, overwritten; p: where to put p

p = softmax(logits / temperature), cut to its nucleus and renormalised; one-hot at temperature 0: the distribution of
`speculators.acceptance.target_distribution`, which is its test. Here it is made without sorting the vocabulary: the nucleus
nearly always lies within the most likely 256 tokens, and only rows where it does not are sorted whole.

Shapes: C rows of a chunk, V vocabulary, R rows that are cut, M most likely tokens that are looked at.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from outrider.speculators.acceptance import GREEDY_BELOW

NUCLEUS_WITHIN = 256
"""Most likely tokens among which the nucleus is looked for first. At 129,280 tokens a partial sort costs a twentieth of a whole one."""


class Served(NamedTuple):
    """How the requests that the N targets come from are sampled, and how the engine drafts."""

    temperature_N: Tensor
    top_p_N: Tensor
    probabilistic: bool
    """Drafts are drawn from q at the request's temperature (without any nucleus, as vLLM draws them); else q's argmax."""

    def draft_temperature(self, chunk: slice) -> Tensor | None:
        """The temperature [C] that q is drawn at; None for argmax drafts, where the logits are taken as they are."""
        if not self.probabilistic:
            return None
        temperature_C = self.temperature_N[chunk]
        return torch.where(temperature_C < GREEDY_BELOW, 1.0, temperature_C)


class Teacher(NamedTuple):
    """p of a chunk and what is known of it."""

    p_CV: Tensor
    best_C: Tensor
    """argmax p"""
    negative_entropy_C: Tensor
    """sum_v p log p, in nats"""
    logged_C: Tensor
    """p of the logged token; before the cut where the cut (by rounding: a log shows what was sampled) left it out."""


def served_distribution(
    z_CV: Tensor, p_CV: Tensor, token_C: Tensor, temperature_C: Tensor, top_p_C: Tensor
) -> Teacher:
    """Puts p of the logits z, float32 or float64, into `p_CV`; z is divided by the temperatures."""
    greedy_C = temperature_C < GREEDY_BELOW
    z_CV.div_(torch.where(greedy_C, 1.0, temperature_C)[:, None])
    top_C, best_C = z_CV.max(-1)
    torch.softmax(z_CV, -1, out=p_CV)
    log_sum_exp_C = top_C - p_CV.gather(-1, best_C[:, None])[:, 0].log()
    negative_entropy_C = torch.linalg.vecdot(p_CV, z_CV) - log_sum_exp_C
    uncut_C = p_CV.gather(-1, token_C[:, None])[:, 0]
    rows = ((top_p_C < 1) & ~greedy_C).nonzero()[:, 0]
    for within in (NUCLEUS_WITHIN, p_CV.shape[1]):
        if len(rows):
            rows = _cut_to_nucleus(
                p_CV, negative_entropy_C, top_p_C, rows, min(within, p_CV.shape[1])
            )
    if greedy_C.any():
        p_CV[greedy_C] = 0.0
        p_CV[greedy_C, best_C[greedy_C]] = 1.0
        negative_entropy_C[greedy_C] = 0.0
    logged_C = p_CV.gather(-1, token_C[:, None])[:, 0]
    return Teacher(p_CV, best_C, negative_entropy_C, torch.where(logged_C > 0, logged_C, uncut_C))


def _cut_to_nucleus(
    p_CV: Tensor, negative_entropy_C: Tensor, top_p_C: Tensor, rows: Tensor, within: int
) -> Tensor:
    """Cuts and renormalises the rows whose nucleus ends within the most likely tokens, and returns the other rows.

    A token is kept while the mass of the more likely ones is below top_p: vLLM's rule (ascending, dropped while the mass up
    to and with it is at most 1 - top_p), told from the other end.
    """
    all_of_them = len(rows) == len(p_CV)
    share_RM, index_RM = (p_CV if all_of_them else p_CV[rows]).topk(within, dim=-1)
    kept_RM = share_RM.cumsum(-1) - share_RM < top_p_C[rows, None]
    ends_R = ~kept_RM[:, -1] | (within == p_CV.shape[1])
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
