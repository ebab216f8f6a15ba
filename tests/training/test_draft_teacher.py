"""A draft vocabulary and a trained head: against whole matrices differentiated by autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.acceptance import GREEDY_BELOW
from outrider.speculators.heads import DraftHead
from outrider.training import losses
from outrider.training.losses import ETA, distillation_loss
from tests.training.test_losses import KINDS, H, K, N, V, literal_p, problem

IDS = torch.tensor([0, 2, 3, 5, 8])
"""Target tokens of the draft vocabulary."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 1)
    monkeypatch.setattr(losses, "CHUNK_ROWS", 3)


def own_head() -> DraftHead:
    torch.manual_seed(4)
    return DraftHead(torch.randn(len(IDS), H, dtype=torch.float64, requires_grad=True), IDS)


def literal(u_KNH: Tensor, head: DraftHead, probabilistic: bool, kind: str) -> Tensor:
    """The loss by the formulas: KL and CE against p renormalized over the draft vocabulary."""
    _, teacher_NH, _, valid_KN, lm_head_VH, served = problem(probabilistic)
    p_ND = literal_p(F.linear(teacher_NH, lm_head_VH), served)[:, IDS]
    mass_N = p_ND.sum(-1)
    goal_ND = p_ND / mass_N.clamp_min(1e-300)[:, None]
    t_N = served.temperature_N.double().masked_fill(served.temperature_N < GREEDY_BELOW, 1.0)
    z_KND = F.linear(u_KNH, head.weight_DH) / (t_N[:, None] if probabilistic else 1.0)
    log_q_KND, q_KND = z_KND.log_softmax(-1), z_KND.softmax(-1)
    kl_KN = (torch.special.xlogy(goal_ND, goal_ND) - goal_ND * log_q_KND).sum(-1)
    overlap = torch.minimum(p_ND.expand_as(q_KND), q_KND) if probabilistic else p_ND * q_KND
    alpha_KN = overlap.sum(-1)
    blend_KN = (-ETA * alpha_KN.detach()).exp()
    best_KN1 = p_ND.argmax(-1).expand(K, N)[..., None]
    loss_KN = {
        "kl": kl_KN,
        "ce": -log_q_KND.gather(-1, best_KN1)[..., 0],
        "tv": 1 - alpha_KN,
        "lk_alpha": -alpha_KN.clamp_min(1e-300).log(),
        "lk_hybrid": blend_KN * kl_KN + (1 - blend_KN) * (1 - alpha_KN),
    }[kind]
    taught_KN = (valid_KN & (mass_N > 0)).double()
    return torch.where(taught_KN > 0, loss_KN, 0.0)


@pytest.mark.parametrize("probabilistic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_equal_the_literal_ones(kind: str, probabilistic: bool) -> None:
    given, head = problem(probabilistic), own_head()
    u_KNH = given[0]
    loss_KN, _ = distillation_loss(*given, kind, head)
    expected_KN = literal(u_KNH, head, probabilistic, kind)
    torch.testing.assert_close(loss_KN, expected_KN, rtol=1e-6, atol=1e-7)
    weight_KN = torch.rand(K, N, dtype=torch.float64)
    inputs = (u_KNH, head.weight_DH)
    found = torch.autograd.grad((weight_KN * loss_KN).sum(), inputs)
    expected = torch.autograd.grad((weight_KN * expected_KN).sum(), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("probabilistic", [False, True])
def test_acceptance_is_against_the_whole_distribution(probabilistic: bool) -> None:
    given, head = problem(probabilistic), own_head()
    u_KNH, teacher_NH, token_N, valid_KN, lm_head_VH, served = given
    _, judged = distillation_loss(*given, "kl", head)
    p_NV = literal_p(F.linear(teacher_NH, lm_head_VH), served)
    q_KNV = torch.zeros(K, N, V, dtype=torch.float64)
    t_N = served.temperature_N.double().masked_fill(served.temperature_N < GREEDY_BELOW, 1.0)
    z_KND = F.linear(u_KNH, head.weight_DH) / (t_N[:, None] if probabilistic else 1.0)
    q_KNV[..., IDS] = z_KND.softmax(-1).detach()
    drafted_KN = q_KNV.argmax(-1)
    expected_KN = p_NV.expand(K, N, V).gather(-1, drafted_KN[..., None])[..., 0]
    if probabilistic:
        drawn_KN = torch.minimum(p_NV.expand_as(q_KNV), q_KNV).sum(-1)
        greedy_N = served.temperature_N < GREEDY_BELOW
        expected_KN = torch.where(greedy_N, expected_KN, drawn_KN)
    torch.testing.assert_close(judged.acceptance_KN, expected_KN * valid_KN, rtol=1e-6, atol=1e-7)
    if not probabilistic:
        hit_KN = (drafted_KN == token_N) & valid_KN
        assert torch.equal(judged.accepted_KN, hit_KN.double())
