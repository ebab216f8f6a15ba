"""Token scores against the sampler's distribution, and on text drawn from it."""

import math

import pytest
import torch

from outrider.serving.token_scores import COLUMNS, TEMPERATURES, token_scores
from outrider.speculators.acceptance import target_distribution

VOCAB = 300  # more than CANDIDATES: the flattest distributions need the full sort
SAMPLINGS = [
    *((0.6, 0.95, 0), (1.0, 1.0, 0), (0.0, 1.0, 0), (0.3, 0.9, 0), (1.5, 0.999, 0)),
    *((0.6, 0.05, 0), (0.7, 1.0, 0), (0.6, 0.95, 20), (1.0, 1.0, 5), (1.5, 0.9, 280)),
    *((1.0, 0.8, 1), (0.6, 0.95, 400), (0.0, 0.5, 3)),
]
"""temperature, top_p, top_k"""


def random_logits(positions: int, seed: int = 0) -> torch.Tensor:
    """From nearly certain to nearly flat."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.05, 12, positions)[
        torch.randperm(positions, generator=generator), None
    ]
    return spread * torch.randn(positions, VOCAB, generator=generator)


def target(logits_NV, temperature_N, top_p, top_k):
    return target_distribution(
        logits_NV, temperature_N, torch.tensor([top_p]), torch.full_like(temperature_N, top_k)
    )


def scored(logits_NV, token_N, temperature, top_p, top_k=0):
    """Scores by the name of their column."""
    sampling = (torch.full((len(token_N),), float(v)) for v in (temperature, top_p, top_k))
    columns = token_scores(logits_NV, token_N, *sampling).unbind(-1)
    return dict(zip(COLUMNS, columns, strict=True))


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), SAMPLINGS)
def test_every_column_is_the_literal_one(temperature, top_p, top_k):
    logits_NV = random_logits(200)
    token_N = torch.randint(0, VOCAB, (200,), generator=torch.Generator().manual_seed(1))
    token_N[::3] = logits_NV.argmax(-1)[::3]
    scores = scored(logits_NV, token_N, temperature, top_p, top_k)
    temperature_N = torch.full((200,), temperature)
    q_NV = target(logits_NV, temperature_N, top_p, top_k).double()
    likely_NV = target(logits_NV, temperature_N, min(top_p, 0.95), top_k) > 0
    logp_NV = (logits_NV / (temperature or 1.0)).double().log_softmax(-1)
    logp1_NV = logits_NV.double().log_softmax(-1)

    def of_x(value_NV):
        return value_NV.gather(-1, token_N[:, None])[:, 0]

    expected_N = (q_NV * logp_NV).sum(-1)
    top_N = token_N == logits_NV.argmax(-1)
    literal = {
        "tokens": torch.ones(200),
        "sampled_logprob": of_x(logp_NV),
        "expected": expected_N,
        "variance": (q_NV * (logp_NV - expected_N[:, None]).square()).sum(-1),
        "rare": of_x(logp1_NV) < math.log(1e-4),
        "rare_difference": (of_x(logp_NV) - expected_N) * (of_x(logp1_NV) < math.log(1e-4)),
        "unlikely": ~of_x(likely_NV),
        "unlikely_expected": (q_NV * ~likely_NV).sum(-1),
        "sure": logp1_NV.amax(-1) >= math.log(0.999),
        "sure_missed": (logp1_NV.amax(-1) >= math.log(0.999)) & ~top_N,
        "sure_missed_expected": (logp1_NV.amax(-1) >= math.log(0.999)) * (1 - q_NV.amax(-1)),
        "fitted": logp1_NV.amax(-1) < math.log(0.9),
    }
    for name, value in literal.items():
        torch.testing.assert_close(
            scores[name].double(), value.double(), atol=1e-2, rtol=1e-4, msg=name
        )


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), SAMPLINGS)
def test_the_likelihood_of_a_temperature_is_that_of_the_cut_distribution(temperature, top_p, top_k):
    logits_NV = random_logits(200)
    q_NV = target(logits_NV, torch.full((200,), max(temperature, 0.3)), top_p, top_k)
    token_N = torch.multinomial(q_NV, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    scores = scored(logits_NV, token_N, temperature, top_p, top_k)
    for name, tau in [
        ("logged_fit", temperature),
        *((f"fit_{tau:g}", tau) for tau in TEMPERATURES),
    ]:
        tau_N = torch.full((200,), tau)
        cut, whole = (
            target(logits_NV, tau_N, *each).double() for each in ((top_p, top_k), (1.0, 0))
        )
        if not tau:
            whole = logits_NV.double().softmax(-1)
            cut = target(logits_NV, tau_N, 1.0, 0).double()
            of_x = torch.where(
                cut.gather(-1, token_N[:, None]) > 0, 1.0, 0.01 * whole.gather(-1, token_N[:, None])
            )
        else:
            of_x = (0.99 * cut + 0.01 * whole).gather(-1, token_N[:, None])
        literal_N = of_x[:, 0].log() * scores["fitted"]
        torch.testing.assert_close(scores[name].double(), literal_N, atol=0.02, rtol=1e-3, msg=name)
        if name != "logged_fit":
            stray_N = (cut.gather(-1, token_N[:, None])[:, 0] == 0) & (
                top_p < 1 or top_k > 0 or not tau
            )
            differs_N = (scores[name.replace("fit", "stray")] > 0) != stray_N * scores[
                "fitted"
            ].bool()
            assert differs_N.sum() <= 1, name
