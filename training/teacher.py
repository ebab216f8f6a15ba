"""The target's distribution as the customer's requests are served: what drafts are accepted against, and so what they learn.

    teacher = served_distribution(logits_CV, token_C, temperature_C, top_p_C)      # overwrites logits_CV
    teacher.p_CV

p = softmax(logits / temperature), cut to its nucleus and renormalised; one-hot at temperature 0: the distribution of
`speculators.acceptance.target_distribution`, which is its test. Here it is made in place and without sorting the vocabulary:
the nucleus nearly always lies within the most likely 256 tokens, and only rows where it does not are sorted whole.

Shapes: C rows of a chunk, V vocabulary, M most likely tokens that are looked at.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from outrider.speculators.acceptance import GREEDY_BELOW

NUCLEUS_WITHIN = 256
"""Most likely tokens among which the nucleus is looked for first. At 129,280 tokens a partial sort costs a twentieth of a whole one."""

NEVER = -1e30
"""The logit of a token that is cut. Finite, so that p * log p is 0 and not NaN."""


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


def served_distribution(logits_CV: Tensor, token_C: Tensor, temperature_C: Tensor, top_p_C: Tensor) -> Teacher:
    """p from logits in float32 or float64, which are overwritten. Memory: one more [C, V] while it works, p itself included."""
    best_C = logits_CV.argmax(-1)
    greedy_C = temperature_C < GREEDY_BELOW
    z_CV = logits_CV.div_(torch.where(greedy_C, 1.0, temperature_C)[:, None].to(logits_CV.dtype))
    log_sum_C = z_CV.logsumexp(-1)
    uncut_C = (z_CV.gather(-1, token_C[:, None])[:, 0] - log_sum_C).exp()
    rows = ((top_p_C < 1) & ~greedy_C).nonzero()[:, 0]
    for within in (NUCLEUS_WITHIN, z_CV.shape[1]):
        if len(rows):
            rows = _cut_to_nucleus(z_CV, log_sum_C, top_p_C, rows, min(within, z_CV.shape[1]))
    if greedy_C.any():
        z_CV[greedy_C] = NEVER
        z_CV[greedy_C, best_C[greedy_C]] = 0.0
        log_sum_C[greedy_C] = 0.0
    log_p_CV = z_CV.sub_(log_sum_C[:, None])
    p_CV = log_p_CV.exp()
    logged_C = p_CV.gather(-1, token_C[:, None])[:, 0]
    logged_C = torch.where(logged_C > 0, logged_C, uncut_C)
    return Teacher(p_CV, best_C, torch.linalg.vecdot(p_CV, log_p_CV), logged_C)


def _cut_to_nucleus(z_CV: Tensor, log_sum_C: Tensor, top_p_C: Tensor, rows: Tensor, within: int) -> Tensor:
    """Cuts the rows whose nucleus ends within the most likely tokens, renormalises `log_sum_C`, and returns the other rows.

    A token is kept while the mass of the more likely ones is below top_p: vLLM's rule (ascending, dropped while the mass up
    to and with it is at most 1 - top_p), told from the other end.
    """
    all_of_them = len(rows) == len(z_CV)
    top_RM, index_RM = (z_CV if all_of_them else z_CV[rows]).topk(within, dim=-1)
    share_RM = (top_RM - log_sum_C[rows, None]).exp()
    kept_RM = share_RM.cumsum(-1) - share_RM < top_p_C[rows, None]
    ends_R = ~kept_RM[:, -1] | (within == z_CV.shape[1])
    done = rows[ends_R]
    if ends_R.all() and all_of_them:
        z_CV.fill_(NEVER)
    else:
        z_CV[done] = NEVER
    z_CV[done[:, None], index_RM[ends_R]] = top_RM[ends_R].masked_fill(~kept_RM[ends_R], NEVER)
    log_sum_C[done] += (share_RM[ends_R] * kept_RM[ends_R]).sum(-1).log()
    return rows[~ends_R]
