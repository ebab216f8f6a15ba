"""Scores of logged tokens under the target, and their on-policy expectation.

    # top_k 0: no limit; columns: COLUMNS
    scores_NC = token_scores(logits_NV, token_N, temperature_N, top_p_N, top_k_N)

Let p be the target's distribution at the request's temperature, and q this distribution cut to the
request's top_k and top_p. An on-policy token x is a sample from q. Then log p(x) - E_q[log p] has
mean zero and a known variance given all tokens before it. Summed over a text, these differences
form a martingale and their variances add up; from a few dozen tokens on, the sum divided by the
square root of the summed variances is approximately standard normal (Hall and Heyde, Martingale
Limit Theory and Its Application, 1980, corollary 3.1). p is taken before the cut, so that log p is
finite for tokens outside it; inside, the cut adds the same constant to both terms. The scores
measure only whether a text is as likely as the target's own text, not which tokens it should
contain.

Shapes: N positions, M open ones (several possible tokens), V vocabulary, C columns, K top tokens.
"""

import math

import torch
from torch import Tensor

from outrider.speculators.acceptance import GREEDY_BELOW

RARE = 1e-4
"""Probability at temperature 1 below which a token is rare. At temperature 0.6 and top_p 1, 0.15 %
of the sampled tokens are rare."""

LIKELY_MASS = 0.95
"""Tokens outside the most likely tokens that make up this probability mass (or top_p, if smaller)
count as `unlikely`. Their expected number is known, so traffic without top_p can be judged too."""

SURE = 0.999
"""Probability at temperature 1 at or above which a token is practically certain at every usual
temperature: at temperature 1.2 without top_p, another token is sampled 0.15 % of the time."""

OPEN_BELOW = 0.9
"""The temperature fit uses only positions whose most likely token has a probability below this at
temperature 1; the others cannot distinguish temperatures."""

TEMPERATURES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Grid of temperatures for the fit."""

STRAY = 0.01
"""Share of tokens that the fit allows outside the cut. With 0, one such token would rule out a
temperature."""

CANDIDATES = 256
"""Number of top tokens (more for a larger top_k) searched for the nucleus before a full sort."""

LEAST_EXPONENT = -80.0
"""Smaller exponents count as this one, which changes no float32 sum: on a CPU, those below -87 take
four times as long, and at temperature 0.2 most are."""

COLUMNS = (
    "tokens",  # 1 for each position
    "sampled_logprob",  # log p(x) at the request's temperature (for greedy requests, at 1)
    "expected",  # E_q[log p]
    "variance",  # variance of log p under q
    "rare",  # 1 where the probability at temperature 1 is below RARE
    "rare_difference",  # log p(x) - E_q[log p] of rare tokens
    "unlikely",  # 1 where x is outside the likely tokens (see LIKELY_MASS)
    "unlikely_expected",  # expectation of `unlikely` for on-policy text
    "sure",  # 1 where the target is SURE
    "sure_missed",  # 1 where the target is SURE of a token other than x
    "sure_missed_expected",  # expectation of `sure_missed` for on-policy text
    "fitted",  # 1 where the temperature fit uses the position
    "logged_fit",  # log-likelihood of fitted positions at the request's temperature
    *(f"fit_{temperature:g}" for temperature in TEMPERATURES),  # at grid temperatures
    # 1 where the cut at that temperature excludes x: on-policy text has none at its temperature
    *(f"stray_{temperature:g}" for temperature in TEMPERATURES),
)


@torch.no_grad()
def token_scores(
    logits_NV: Tensor,
    token_N: Tensor,
    temperature_N: Tensor,
    top_p_N: Tensor,
    top_k_N: Tensor,
    *,
    fit_N: Tensor | None = None,
) -> Tensor:
    """float32 [N, C] by COLUMNS; the temperature fit uses positions `fit_N` (None: all)."""
    vocabulary = logits_NV.shape[-1]
    top_k_N = torch.where(top_k_N > 0, top_k_N.long(), vocabulary).clamp(max=vocabulary)
    best_N1 = logits_NV.amax(-1, keepdim=True).float()
    logits_NV = logits_NV.float() - best_N1  # at most 0, so that no exponential overflows
    x_N = logits_NV.gather(-1, token_N[:, None])[:, 0]
    greedy_N = temperature_N < GREEDY_BELOW
    tau_N = torch.where(greedy_N, 1.0, temperature_N)
    log_z1_N = logits_NV.exp().sum(-1).log()
    log_z_N = _exp(logits_NV / tau_N[:, None]).sum(-1).log()
    sampled_N = x_N / tau_N - log_z_N
    other_N = (x_N < 0).float()

    # Most positions are closed: the best token alone fills top_p, so only it can be sampled.
    zero_N = torch.zeros_like(x_N)
    one_N = torch.ones_like(x_N)
    answers_5N = torch.stack([-log_z_N, zero_N, other_N, zero_N, one_N])
    open_M = (~greedy_N & (-log_z_N < top_p_N.log())).nonzero()[:, 0]
    if len(open_M):
        answers_5N[:, open_M] = _open_positions(
            scaled_MV=logits_NV[open_M] / tau_N[open_M, None],
            log_z_M=log_z_N[open_M],
            x_M=x_N[open_M] / tau_N[open_M],
            top_p_M=top_p_N[open_M],
            top_k_M=top_k_N[open_M],
        )
    expected_N, variance_N, unlikely_N, unlikely_expected_N, best_drawn_N = answers_5N

    rare_N = (x_N - log_z1_N < math.log(RARE)).float()
    sure_N = (-log_z1_N >= math.log(SURE)).float()
    fitted_N = (-log_z1_N < math.log(OPEN_BELOW)) & (True if fit_N is None else fit_N)
    fits_NF = torch.zeros(len(x_N), 1 + 2 * len(TEMPERATURES), device=x_N.device)
    if fitted_N.any():
        fits_NF[fitted_N] = _fit(
            logits_MV=logits_NV[fitted_N],
            x_M=x_N[fitted_N],
            temperature_M=temperature_N[fitted_N],
            top_p_M=top_p_N[fitted_N],
            top_k_M=top_k_N[fitted_N],
        )
    return torch.stack(
        [
            one_N,
            sampled_N,
            expected_N,
            variance_N,
            rare_N,
            rare_N * (sampled_N - expected_N),
            unlikely_N,
            unlikely_expected_N,
            sure_N,
            sure_N * other_N,
            sure_N * (1 - best_drawn_N),
            fitted_N.float(),
            *fits_NF.unbind(-1),
        ],
        dim=-1,
    )


def _exp(exponents: Tensor) -> Tensor:
    return exponents.clamp(min=LEAST_EXPONENT).exp_()


def _open_positions(
    *,
    scaled_MV: Tensor,
    log_z_M: Tensor,
    x_M: Tensor,
    top_p_M: Tensor,
    top_k_M: Tensor,
    candidates: int = CANDIDATES,
) -> Tensor:
    """Returns [5, M]: expected, variance, unlikely, unlikely_expected, best_drawn.

    `best_drawn` is the probability that the most likely token is sampled.
    """
    vocabulary = scaled_MV.shape[-1]
    candidates = _candidates(top_k_M, vocabulary, candidates)
    values_MK = scaled_MV.topk(candidates).values
    logp_MK = values_MK - log_z_M[:, None]
    p_MK = logp_MK.exp()
    above_MK = p_MK.cumsum(-1) - p_MK
    limited_M = top_k_M < vocabulary
    uncut_M = (top_p_M >= 1) & ~limited_M
    # As in vLLM, tokens are kept in order of decreasing probability until their total reaches the
    # limit (acceptance.target_distribution).
    among_MK = _among_top_k(values_MK, top_k_M, vocabulary)
    among_M = torch.where(limited_M, (p_MK * among_MK).sum(-1), 1.0)
    nucleus_M = top_p_M * among_M
    likely_M = top_p_M.clamp(max=LIKELY_MASS) * among_M
    # Without top_p, keep all candidates explicitly, because rounding could drop the last ones.
    kept_MK = among_MK & ((above_MK < nucleus_M[:, None]) | (top_p_M >= 1)[:, None])
    likely_MK = kept_MK & (above_MK < likely_M[:, None])
    mass_M = torch.where(uncut_M, 1.0, (p_MK * kept_MK).sum(-1))
    q_MK = p_MK * kept_MK / mass_M[:, None]
    expected_M = (q_MK * logp_MK).sum(-1)
    variance_M = (q_MK * (logp_MK - expected_M[:, None]).square()).sum(-1)
    if uncut_M.any():
        logp_LV = scaled_MV[uncut_M] - log_z_M[uncut_M, None]
        p_LV = _exp(logp_LV)
        expected_M[uncut_M] = (p_LV * logp_LV).sum(-1)
        variance_M[uncut_M] = (p_LV * logp_LV.square()).sum(-1) - expected_M[uncut_M].square()
    unlikely_M = x_M < values_MK.masked_fill(~likely_MK, math.inf).amin(-1)
    unlikely_expected_M = 1 - (p_MK * likely_MK).sum(-1) / mass_M
    answers_5M = torch.stack(
        [
            expected_M,
            variance_M,
            unlikely_M.float(),
            unlikely_expected_M,
            p_MK[:, 0] / mass_M,
        ]
    )
    larger_M = ~limited_M & (p_MK.sum(-1) < torch.where(uncut_M, likely_M, top_p_M))
    if candidates < vocabulary and larger_M.any():
        answers_5M[:, larger_M] = _open_positions(
            scaled_MV=scaled_MV[larger_M],
            log_z_M=log_z_M[larger_M],
            x_M=x_M[larger_M],
            top_p_M=top_p_M[larger_M],
            top_k_M=top_k_M[larger_M],
            candidates=vocabulary,
        )
    return answers_5M


def _candidates(top_k_M: Tensor, vocabulary: int, least: int = CANDIDATES) -> int:
    """Candidate count: at least the largest top_k plus one, to detect ties."""
    largest = int(torch.where(top_k_M < vocabulary, top_k_M, 0).amax())
    return min(max(least, largest + 1), vocabulary)


def _among_top_k(values_MK: Tensor, top_k_M: Tensor, vocabulary: int) -> Tensor:
    """Mask [M, K] of candidates that top_k keeps, including ties, as in vLLM."""
    # vLLM drops what is less than the k-th largest logit, so its equals stay
    # (vllm/v1/sample/ops/topk_topp_sampler.py, line 501).
    last_M = top_k_M.clamp(max=values_MK.shape[-1]) - 1
    least_M = values_MK.gather(-1, last_M[:, None])[:, 0]
    return values_MK >= torch.where(top_k_M < vocabulary, least_M, -math.inf)[:, None]


def _fit(
    logits_MV: Tensor, x_M: Tensor, temperature_M: Tensor, top_p_M: Tensor, top_k_M: Tensor
) -> Tensor:
    """Returns [M, 1 + 2 x temperatures]: the columns of the temperature fit.

    They are the log-likelihood of x under the distribution cut to top_k and top_p, at the logged
    temperature and at each grid temperature, and, on the grid, whether the cut excludes x.
    """
    vocabulary = logits_MV.shape[-1]
    best_MK = logits_MV.topk(_candidates(top_k_M, vocabulary)).values
    limited_M = top_k_M < vocabulary
    among_MK = _among_top_k(best_MK, top_k_M, vocabulary)
    least_M = best_MK.masked_fill(~among_MK, math.inf).amin(-1)
    above_MV = logits_MV > x_M[:, None]
    log_z1_M = logits_MV.exp().sum(-1).log()
    greedy_M = torch.where(x_M < 0, math.log(STRAY) + x_M - log_z1_M, 0.0)
    greedy = greedy_M, (x_M < 0).float()

    def at(tau_M: Tensor) -> tuple[Tensor, Tensor]:
        p_MV = _exp(logits_MV / tau_M[:, None])
        z_M = p_MV.sum(-1)
        p_MK = (best_MK / tau_M[:, None]).exp() / z_M[:, None]
        nucleus_M = top_p_M * torch.where(limited_M, (p_MK * among_MK).sum(-1), 1.0)
        inside_M = ((p_MV * above_MV).sum(-1) / z_M < nucleus_M) | (top_p_M >= 1)
        inside_M &= ~limited_M | (x_M >= least_M)
        kept_MK = among_MK & (p_MK.cumsum(-1) - p_MK < nucleus_M[:, None])
        # A nucleus that extends beyond the candidates has a mass only slightly above top_p.
        larger_M = ~limited_M & (p_MK.sum(-1) < top_p_M)
        mass_M = torch.where(larger_M, top_p_M, (p_MK * kept_MK).sum(-1))
        share_M = torch.where(inside_M, (1 - STRAY) / mass_M + STRAY, STRAY)
        return x_M / tau_M - z_M.log() + share_M.log(), 1 - inside_M.float()

    decodes_greedily_M = temperature_M < GREEDY_BELOW
    logged_M, _ = at(torch.where(decodes_greedily_M, 1.0, temperature_M))
    grid = [
        at(torch.full_like(x_M, temperature)) if temperature else greedy
        for temperature in TEMPERATURES
    ]
    fits, strays = zip(*grid, strict=True)
    return torch.stack(
        [torch.where(decodes_greedily_M, greedy_M, logged_M), *fits, *strays], dim=-1
    )
