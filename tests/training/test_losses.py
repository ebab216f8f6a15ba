"""The chunked losses against closed forms and a literal version differentiated by autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.speculators.acceptance import (
    GREEDY_BELOW,
    accept_probability,
    logged_token_probability,
)
from outrider.speculators.heads import DraftHead
from outrider.training import losses
from outrider.training.losses import DraftLosses, distillation_loss
from outrider.training.teacher import ServedSampling

K, N, H, V = 2, 7, 4, 9
KINDS = ["kl", "ce", "lk_alpha"]
OWN_KL = "tests.training.own_losses:kl"
OWN_TV = "examples.research.research_loss:total_variation"

MASKED = [2, 3, 4]
"""Targets with a grammar."""
EVEN = 0b101010101

Problem = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, ServedSampling]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", 1)
    monkeypatch.setattr(losses, "CHUNK_ROWS", 3)


def problem(probabilistic: bool) -> Problem:
    """Requests with several sampling parameters, greedy ones too; some drafts without a target.

    Of greedy drafts, two requests have hard labels, one of them at temperature 0. Three targets
    have grammars, which allow even tokens and the logged one.
    """
    torch.manual_seed(0)
    u_KNH = torch.randn(K, N, H, dtype=torch.float64, requires_grad=True)
    teacher_NH = torch.randn(N, H, dtype=torch.float64)
    lm_head_VH = torch.randn(V, H, dtype=torch.float64)
    valid_KN = torch.ones(K, N, dtype=torch.bool)
    valid_KN[1, 2:4] = False
    token_N = torch.randint(0, V, (N,))
    temperature_N = torch.tensor([1.0, 0.6, 0.6, 0.0, 1.3, 0.6, 0.0])
    top_p_N = torch.tensor([1.0, 0.95, 0.5, 1.0, 0.9, 1.0, 0.5])
    hard_N = torch.tensor([False, True, False, False, False, False, True])
    return (
        u_KNH,
        teacher_NH,
        token_N,
        valid_KN,
        lm_head_VH,
        ServedSampling(
            temperature_N,
            top_p_N,
            probabilistic,
            hard_N=None if probabilistic else hard_N,
            masks_MW=(EVEN | 1 << token_N[MASKED]).int()[:, None],
            mask_N=torch.tensor([-1, -1, 0, 1, 2, -1, -1]),
        ),
    )


def own_head() -> DraftHead:
    """A trained head over five of the target's nine tokens."""
    torch.manual_seed(4)
    ids = torch.tensor([0, 2, 3, 5, 8])
    return DraftHead(torch.randn(len(ids), H, dtype=torch.float64, requires_grad=True), ids)


def literal(
    u_KNH: Tensor, problem: Problem, kind: str, head: DraftHead | None
) -> tuple[Tensor, DraftLosses]:
    """Every formula of the module's docstring, over whole matrices.

    KL and CE are against p renormalized over the draft vocabulary, alpha is against p itself.
    """
    _, teacher_NH, token_N, valid_KN, lm_head_VH, served = problem
    weight_DH = lm_head_VH
    ids = torch.arange(V)
    if head is not None:
        weight_DH = head.weight_DH
        ids = head.target_ids_D
    logits_NV = F.linear(teacher_NH, lm_head_VH)
    for n in MASKED:
        for token in range(1, V, 2):
            if token != token_N[n]:
                logits_NV[n, token] = -torch.inf
    # In float64: `target_distribution` rounds to float32.
    p_ND = literal_p(logits_NV, served, token_N)[:, ids]
    goal_ND = p_ND / p_ND.sum(-1, keepdim=True).clamp_min(1e-300)
    t_N = served.temperature_N.double().masked_fill(served.temperature_N < GREEDY_BELOW, 1.0)
    drafts_KND = F.linear(u_KNH, weight_DH)
    z_KND = drafts_KND / (t_N[:, None] if served.probabilistic else 1.0)
    log_q_KND = z_KND.log_softmax(-1)
    q_KND = z_KND.softmax(-1)
    kl_KN = (torch.special.xlogy(goal_ND, goal_ND) - goal_ND * log_q_KND).sum(-1)
    sampled = served.probabilistic
    alpha_KN = (torch.minimum(p_ND.expand_as(q_KND), q_KND) if sampled else p_ND * q_KND).sum(-1)
    best_KN1 = p_ND.argmax(-1).expand(K, N)[..., None]
    loss_KN = {
        "kl": kl_KN,
        "ce": -log_q_KND.gather(-1, best_KN1)[..., 0],
        "lk_alpha": -alpha_KN.clamp_min(1e-300).log(),
        OWN_KL: kl_KN,
        OWN_TV: (p_ND - q_KND).abs().sum(-1) / 2,
    }[kind]
    acceptance_KN = p_ND.expand_as(q_KND).gather(-1, q_KND.argmax(-1, keepdim=True))[..., 0]
    if served.probabilistic:
        acceptance_KN = torch.where(served.temperature_N < GREEDY_BELOW, acceptance_KN, alpha_KN)
    p_N = logged_token_probability(logits_NV, token_N, served.temperature_N, served.top_p_N)
    drafts_KNV = torch.full((K, N, V), -torch.inf, dtype=torch.float64)
    drafts_KNV[..., ids] = drafts_KND.detach()
    accepted_KN = torch.stack(
        [
            accept_probability(
                drafts_NV,
                token_N,
                served.temperature_N,
                p_N,
                probabilistic=served.probabilistic,
            )
            for drafts_NV in drafts_KNV
        ]
    )
    taught_KN = valid_KN & (p_ND.sum(-1) > 0)
    found = DraftLosses(kl_KN * taught_KN, acceptance_KN * valid_KN, accepted_KN * valid_KN)
    return torch.where(taught_KN, loss_KN, 0.0), found


def literal_p(logits_NV: Tensor, served: ServedSampling, token_N: Tensor) -> Tensor:
    """Row by row: sort by probability, keep until the kept mass reaches top_p, renormalize.

    With a hard label, the logged token has all the mass.
    """
    p_NV = torch.zeros_like(logits_NV)
    for n, (temperature, top_p) in enumerate(
        zip(served.temperature_N, served.top_p_N, strict=True)
    ):
        if served.hard_N is not None and served.hard_N[n]:
            p_NV[n, token_N[n]] = 1.0
            continue
        if temperature < GREEDY_BELOW:
            p_NV[n, logits_NV[n].argmax()] = 1.0
            continue
        plain_V = (logits_NV[n] / temperature.double()).softmax(-1)
        mass = 0.0
        for token in plain_V.argsort(descending=True):
            if mass < top_p:
                p_NV[n, token] = plain_V[token]
            mass += plain_V[token]
        p_NV[n] /= p_NV[n].sum()
    return p_NV


@pytest.mark.parametrize("own", [False, True], ids=["target_head", "own_head"])
@pytest.mark.parametrize("probabilistic", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, OWN_KL, OWN_TV])
def test_loss_gradients_and_other_results_equal_the_literal_ones(
    kind: str, probabilistic: bool, own: bool
) -> None:
    given = problem(probabilistic)
    head = own_head() if own else None
    u_KNH = given[0]
    weight_KN = torch.rand(K, N, dtype=torch.float64)
    names = ("u_KNH", "teacher_NH", "token_N", "valid_KN", "lm_head_VH", "served")
    arguments = dict(zip(names, given, strict=True))
    loss_KN, judged = distillation_loss(**arguments, kind=kind, head=head)
    expected_KN, expected = literal(u_KNH, given, kind, head)
    # The temperature is float32, in the engine's requests and here.
    torch.testing.assert_close(loss_KN, expected_KN, rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(judged, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, check_dtype=False)
    inputs = (u_KNH,) if head is None else (u_KNH, head.weight_DH)
    found = torch.autograd.grad((weight_KN * loss_KN).sum(), inputs)
    wanted = torch.autograd.grad((weight_KN * expected_KN).sum(), inputs)
    for ours, theirs in zip(found, wanted, strict=True):
        assert theirs.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_an_own_loss_returns_one_value_a_row() -> None:
    u_KNH, teacher_NH, token_N, valid_KN, lm_head_VH, served = problem(False)
    with pytest.raises(OutriderError, match=r"own_losses:summed': returned shape \[\] .* row"):
        distillation_loss(
            u_KNH=u_KNH,
            teacher_NH=teacher_NH,
            token_N=token_N,
            valid_KN=valid_KN,
            lm_head_VH=lm_head_VH,
            served=served,
            kind="tests.training.own_losses:summed",
        )


def test_hard_labels_have_the_gradient_of_kl_in_expectation() -> None:
    """The mean over x ~ p of the gradient of -log q(x) is that of KL(p||q)."""
    u_KNH, teacher_NH, token_N, valid_KN, lm_head_VH, _ = problem(False)
    one_N = torch.ones(N)
    arguments = {"teacher_NH": teacher_NH, "valid_KN": valid_KN, "lm_head_VH": lm_head_VH}
    soft_KN, _ = distillation_loss(
        u_KNH=u_KNH,
        token_N=token_N,
        served=ServedSampling(one_N, one_N, False),
        kind="kl",
        **arguments,
    )
    (expected_KNH,) = torch.autograd.grad(soft_KN.sum(), u_KNH)
    p_NV = F.linear(teacher_NH, lm_head_VH).softmax(-1)
    for kind in KINDS:
        mean_KNH = torch.zeros_like(u_KNH)
        for token in range(V):
            hard_KN, judged = distillation_loss(
                u_KNH=u_KNH,
                token_N=torch.full((N,), token),
                served=ServedSampling(one_N, one_N, False, hard_N=one_N > 0),
                kind=kind,
                **arguments,
            )
            assert torch.equal(judged.acceptance_KN, judged.accepted_KN)
            (grad_KNH,) = torch.autograd.grad(hard_KN.sum(), u_KNH)
            mean_KNH += p_NV[:, token, None] * grad_KNH
        torch.testing.assert_close(mean_KNH, expected_KNH)


P = (0.75, 0.25)
Q = (0.5, 0.5)
KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
MIN, DOT = 0.75, 0.5


@pytest.mark.parametrize(
    ("kind", "sampled", "loss", "slope"),
    [
        ("kl", True, KL, -0.25),
        ("ce", True, math.log(2), -0.5),
        # m = (1, 0), <m, q> = 1/2: q (m - <m, q>) = (1/4, -1/4)
        ("lk_alpha", True, -math.log(MIN), -0.25 / MIN),
        # m = p, <m, q> = 1/2: q (m - <m, q>) = (1/8, -1/8)
        ("lk_alpha", False, -math.log(DOT), -0.125 / DOT),
    ],
)
def test_closed_forms(kind: str, sampled: bool, loss: float, slope: float) -> None:
    """W is the identity, so states are logits: p = (3/4, 1/4), q = (1/2, 1/2), logged token 0."""
    teacher_NH = torch.tensor([[math.log(3.0), 0.0]])
    u_KNH = torch.zeros(1, 1, 2, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.bool)
    served = ServedSampling(torch.ones(1), torch.ones(1), probabilistic=sampled)
    loss_KN, judged = distillation_loss(
        u_KNH=u_KNH,
        teacher_NH=teacher_NH,
        token_N=torch.tensor([0]),
        valid_KN=one,
        lm_head_VH=torch.eye(2),
        served=served,
        kind=kind,
    )
    loss_KN.sum().backward()
    assert loss_KN.item() == pytest.approx(loss)
    assert u_KNH.grad.flatten().tolist() == pytest.approx([slope, -slope])
    assert judged.kl_KN.item() == pytest.approx(KL)
    # Of argmax drafts, q's is the first of the two.
    assert judged.acceptance_KN.item() == pytest.approx(MIN if sampled else P[0])
    assert judged.accepted_KN.item() == pytest.approx(Q[0] / P[0] if sampled else 1.0)


def test_drafts_without_a_target_have_no_loss_and_such_chunks_are_skipped() -> None:
    u_KNH, teacher_NH, token_N, valid_KN, lm_head_VH, served = problem(False)
    valid_KN = valid_KN.clone()
    valid_KN[:, 3:6] = False
    poisoned_NH = teacher_NH.clone()
    poisoned_NH[3:6] = float("nan")
    loss_KN, judged = distillation_loss(
        u_KNH=u_KNH,
        teacher_NH=poisoned_NH,
        token_N=token_N,
        valid_KN=valid_KN,
        lm_head_VH=lm_head_VH,
        served=served,
        kind="kl",
    )
    loss_KN.sum().backward()
    for values_KN in (loss_KN, *judged, u_KNH.grad.norm(dim=-1)):
        assert not values_KN[~valid_KN].any()
    assert u_KNH.grad[valid_KN].any()


def test_bf16_states_and_head_stay_within_bf16_of_float32() -> None:
    u_KNH, teacher_NH, token_N, valid_KN, lm_head_VH, served = problem(True)
    wide, narrow = (
        [x.detach().to(d) for x in (u_KNH, teacher_NH, lm_head_VH)]
        for d in (torch.float32, torch.bfloat16)
    )
    gradients = []
    for u, teacher, head in (wide, narrow):
        u = u.bfloat16().to(u.dtype).requires_grad_()
        loss_KN, _ = distillation_loss(
            u_KNH=u,
            teacher_NH=teacher.bfloat16().to(u.dtype),
            token_N=token_N,
            valid_KN=valid_KN,
            lm_head_VH=head.bfloat16().to(u.dtype),
            served=served,
            kind="kl",
        )
        assert loss_KN.dtype == torch.float32
        (gradient,) = torch.autograd.grad(loss_KN.sum(), u)
        gradients.append(gradient.float())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("probabilistic", [False, True])
def test_lk_alpha_is_bounded_where_p_and_q_hardly_overlap(probabilistic: bool) -> None:
    """The gradient of -log alpha has an L1 norm of at most 2 for any alpha, rounding included."""
    torch.manual_seed(0)
    rows, vocabulary = 64, 500
    teacher_NH = torch.randn(rows, vocabulary)
    teacher_NH[:, 0] = 25.0
    u_KNH = torch.randn(1, rows, vocabulary)
    u_KNH[:, :, 1] = torch.linspace(5.0, 45.0, rows)
    served = ServedSampling(torch.ones(rows), torch.full((rows,), 0.95), probabilistic)
    token_N = torch.zeros(rows, dtype=torch.long)
    valid_KN = torch.ones(1, rows, dtype=torch.bool)
    gradients = []
    values = []
    for dtype in (torch.float32, torch.float64):
        u = u_KNH.to(dtype, copy=True).requires_grad_()
        head_VH = torch.eye(vocabulary, dtype=dtype)
        loss_KN, _ = distillation_loss(
            u_KNH=u,
            teacher_NH=teacher_NH.to(dtype),
            token_N=token_N,
            valid_KN=valid_KN,
            lm_head_VH=head_VH,
            served=served,
            kind="lk_alpha",
        )
        loss_KN.sum().backward()
        gradients.append(u.grad.double())
        values.append(loss_KN.double())
    assert values[1].max() > 30
    assert gradients[0].abs().sum(-1).max() < 2.001
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)
