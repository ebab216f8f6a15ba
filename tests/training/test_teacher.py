"""p without a full sort against the replay's p, which is tested against vLLM's code."""

import pytest
import torch

from outrider.speculators.acceptance import logged_token_probability, target_distribution
from outrider.training import teacher
from outrider.training.teacher import served_distribution

ROWS, VOCABULARY = 40, 300


def requests() -> tuple[torch.Tensor, ...]:
    """Flat and sharp logits, temperatures 0 to 1.5, cuts to one token and to all."""
    torch.manual_seed(0)
    logits_CV = torch.randn(ROWS, VOCABULARY) * torch.linspace(0.1, 8.0, ROWS)[:, None]
    temperature_C = torch.tensor([0.0, 0.3, 0.6, 1.0, 1.5]).repeat(ROWS // 5)
    top_p_C = torch.tensor([1.0, 0.95, 0.5, 0.1]).repeat(ROWS // 4)
    top_k_C = torch.tensor([0, 1, 5, 20, 299, 400, 0, 16]).repeat(ROWS // 8)
    return logits_CV, torch.randint(0, VOCABULARY, (ROWS,)), temperature_C, top_p_C, top_k_C


@pytest.mark.parametrize("within", [1, 16, 256, 10**6])
def test_p_is_the_one_that_the_replay_uses(within: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "NUCLEUS_WITHIN", within)
    logits_CV, token_C, *sampling = requests()
    expected_CV = target_distribution(logits_CV, *sampling)
    expected_logged_C = logged_token_probability(logits_CV, token_C, *sampling)
    # Some nuclei end within 16 tokens and some do not.
    sizes_C = (expected_CV > 0).sum(-1)
    assert 0.2 < (sizes_C <= 16).float().mean() < 0.9
    temperature_C, top_p_C, top_k_C = sampling
    found = served_distribution(
        z_CV=logits_CV.clone(),
        p_CV=torch.empty_like(logits_CV),
        token_C=token_C,
        temperature_C=temperature_C,
        top_p_C=top_p_C,
        top_k_C=top_k_C,
    )
    assert torch.equal(found.p_CV > 0, expected_CV > 0)
    torch.testing.assert_close(found.p_CV, expected_CV)
    assert torch.equal(found.best_C, logits_CV.argmax(-1))
    torch.testing.assert_close(
        found.negative_entropy_C, torch.special.xlogy(expected_CV, expected_CV).sum(-1)
    )
    torch.testing.assert_close(found.logged_C, expected_logged_C)


def test_ties_at_the_edge_of_top_k_are_all_kept_as_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_CV = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0, -1.0]])
    one = torch.ones(1)
    top_k = torch.tensor([2])
    for within in (2, 3, 6):
        monkeypatch.setattr(teacher, "NUCLEUS_WITHIN", within)
        found = served_distribution(
            z_CV=logits_CV.clone(),
            p_CV=torch.empty_like(logits_CV),
            token_C=torch.tensor([0]),
            temperature_C=one,
            top_p_C=one,
            top_k_C=top_k,
        )
        expected_CV = target_distribution(logits_CV, one, one, top_k)
        assert (expected_CV > 0).sum() == 4
        torch.testing.assert_close(found.p_CV, expected_CV)
