"""Distillation loss of every draft depth against the target's distribution, in chunks.

    loss_KN, judged = distillation_loss(
        u_KNH=u_KNH, teacher_NH=teacher_NH, token_N=token_N, valid_KN=valid_KN,
        lm_head_VH=ends.lm_head_VH, served=served, kind="lk_alpha",
    )
    (loss_KN * weight_KN).sum().backward()

p is the target's distribution as served (teacher.py), recomputed from stored states. q =
softmax(W u / t) is the draft's, where t is the request's temperature if drafts are sampled from q
and 1 if they are its argmax. alpha is the probability that the draft is accepted:

    sum_v min(p, q)     drafts sampled from q, under rejection sampling
    sum_v p q           argmax drafts: a smooth form of p(argmax q), equal to it if q is one-hot

The losses, with their gradients with respect to z = W u / t (m = d alpha / dq: 1 where q < p, else
0; p itself for argmax drafts):

    kl         KL(p||q)            q - p
    ce         -log q[argmax p]    q - onehot(argmax p)
    lk_alpha   -log alpha          -q (m - <m, q>) / alpha

Against a one-hot p (temperature 0, or the hard labels of teacher.py), all are equal to -log q(x).

Any other name is a recipe's own function loss(z, p), from z [C, D] and p [C, D], the target's
probabilities of the draft tokens, to a loss [C]. Its gradient with respect to z is autograd's.

W is frozen, so the gradient with respect to u is computed in the forward pass from a chunk's
logits. Only one tensor of u's size is kept for backward; p and q never exist as whole [N, V]
tensors. The gradient is kept for a weight of 1 and scaled in backward, so that weights may depend
on the results of this pass (objective.py). All depths share the teacher's row n: u_KNH[s][n] and
h[n] must be aligned to the same target token.

A drafter's own head (`DraftHead`) may cover fewer tokens (`draft_teacher`) and may be trained. A
trained head's gradient depends on the targets' loss weights, so backward recomputes the logits.

Shapes: K depths, N target tokens, H hidden, V vocabulary, D draft vocabulary (V if it is the
target's), C rows of a chunk.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from outrider.common.errors import OutriderError
from outrider.common.own_code import load_function
from outrider.speculators.acceptance import GREEDY_BELOW
from outrider.speculators.heads import DraftHead
from outrider.training.config import LOSSES
from outrider.training.memory import CHUNK_LOGITS, CHUNK_ROWS
from outrider.training.teacher import (
    DraftTeacher,
    ServedSampling,
    draft_teacher,
    served_distribution,
)


class DraftLosses(NamedTuple):
    """Results besides the loss, by depth and target; 0 for invalid targets."""

    kl_KN: Tensor
    """KL(p||q) in nats"""
    acceptance_KN: Tensor
    """Expected acceptance: p(argmax q), or sum min(p, q) for sampled drafts."""
    accepted_KN: Tensor
    """Acceptance probability given the logged token; called `a` in `speculators.acceptance`."""


def distillation_loss(
    *,
    u_KNH: Tensor,
    teacher_NH: Tensor,
    token_N: Tensor,
    valid_KN: Tensor,
    lm_head_VH: Tensor,
    served: ServedSampling,
    kind: str,
    head: DraftHead | None = None,
) -> tuple[Tensor, DraftLosses]:
    """Returns the loss [K, N] in float32, and the other results.

    The loss is differentiable in u, and 0 for invalid targets. `token_N` are the logged target
    tokens, `teacher_NH` the states that predict them. Drafts use `head`, by default `lm_head_VH`.
    """
    rows = max(CHUNK_ROWS, CHUNK_LOGITS[u_KNH.device.type] // lm_head_VH.shape[0])
    weight_DH = lm_head_VH if head is None else head.weight_DH
    problem = _Problem(
        teacher_NH=teacher_NH,
        token_N=token_N,
        valid_KN=valid_KN,
        lm_head_VH=lm_head_VH,
        head=head,
        served=served,
        kind=kind,
        rows=rows,
    )
    loss_KN, *judged = _ChunkedDistillation.apply(u_KNH, weight_DH, problem)
    return loss_KN, DraftLosses(*judged)


class _Buffers:
    """Memory for the logits of a chunk, allocated once.

    Allocating this much memory costs as much time as the arithmetic on the logits.
    """

    def __init__(self, u_KNH: Tensor, rows: int, vocabulary: int, wide: torch.dtype):
        self.raw_CV = u_KNH.new_empty(rows, vocabulary)
        self.z_CV, self.p_CV, self.q_CV = (
            u_KNH.new_empty(rows, vocabulary, dtype=wide) for _ in range(3)
        )

    def cut(self, rows: int) -> "_Buffers":
        """Returns the same memory for a chunk of fewer rows."""
        part = object.__new__(_Buffers)
        part.__dict__ = {name: tensor[:rows] for name, tensor in self.__dict__.items()}
        return part

    def logits(self, state_CH: Tensor, lm_head_VH: Tensor) -> Tensor:
        """Writes W h to `z_CV` and returns it."""
        return self.z_CV.copy_(torch.mm(state_CH, lm_head_VH.t(), out=self.raw_CV))


class _Problem(NamedTuple):
    """The arguments that get no gradient."""

    teacher_NH: Tensor
    token_N: Tensor
    valid_KN: Tensor
    lm_head_VH: Tensor
    head: DraftHead | None
    served: ServedSampling
    kind: str
    rows: int


class _Chunk(NamedTuple):
    """One depth of one chunk of targets."""

    depth: int
    targets: "slice[int, int, None]"
    values: tuple[Tensor, Tensor, Tensor, Tensor]
    """Loss, KL, acceptance, accepted; [C] each"""
    dz_CD: Tensor
    """Gradient of the loss with respect to draft logits, in u's dtype"""


def _chunks(u_KNH: Tensor, weight_DH: Tensor, problem: _Problem) -> Iterator[_Chunk]:
    """Yields every depth of every chunk that has a valid target."""
    depths, tokens, _ = u_KNH.shape
    teacher_NH, token_N, valid_KN, lm_head_VH, head, served, kind, rows = problem
    wide = torch.promote_types(u_KNH.dtype, torch.float32)
    whole = _Buffers(u_KNH, min(rows, tokens), lm_head_VH.shape[0], wide)
    drafts = whole
    if len(weight_DH) != len(lm_head_VH):
        drafts = _Buffers(u_KNH, min(rows, tokens), weight_DH.shape[0], wide)
    for start in range(0, tokens, rows):
        chunk = slice(start, min(start + rows, tokens))
        if not valid_KN[:, chunk].any():
            continue
        room = whole.cut(chunk.stop - start)
        token_C = token_N[chunk]
        temperature_C = served.temperature_N[chunk]
        top_k_C = None if served.top_k_N is None else served.top_k_N[chunk]
        hard_C = None if served.hard_N is None else served.hard_N[chunk]
        z_CV = served.masked(room.logits(teacher_NH[chunk], lm_head_VH), chunk)
        teacher = served_distribution(
            z_CV=z_CV,
            p_CV=room.p_CV,
            token_C=token_C,
            temperature_C=temperature_C,
            top_p_C=served.top_p_N[chunk],
            top_k_C=top_k_C,
            hard_C=hard_C,
        )
        taught = draft_teacher(teacher, head, token_C)
        draft_temperature_C = served.draft_temperature(chunk)
        room = drafts.cut(chunk.stop - start)
        for s in range(depths):
            z_CD = room.logits(u_KNH[s, chunk], weight_DH)
            values, dz_CD = _judge(
                z_CD,
                room.q_CV,
                taught,
                temperature_C=temperature_C,
                draft_temperature_C=draft_temperature_C,
                kind=kind,
            )
            yield _Chunk(s, chunk, values, room.raw_CV.copy_(dz_CD))


class _Context(FunctionCtx):
    """What forward leaves for backward."""

    problem: _Problem
    saved_tensors: tuple[Tensor, ...]


class _ChunkedDistillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, u_KNH: Tensor, weight_DH: Tensor, problem: _Problem
    ) -> tuple[Tensor, ...]:
        depths, tokens, _ = u_KNH.shape
        wide = torch.promote_types(u_KNH.dtype, torch.float32)
        grad_KNH = torch.zeros_like(u_KNH)
        out = [u_KNH.new_zeros(depths, tokens, dtype=wide) for _ in range(4)]
        for chunk in _chunks(u_KNH, weight_DH, problem):
            part = (chunk.depth, chunk.targets)
            valid_C = problem.valid_KN[part]
            for out_KN, value_C in zip(out, chunk.values, strict=True):
                out_KN[part] = value_C * valid_C
            torch.mm(chunk.dz_CD, weight_DH, out=grad_KNH[part])
            grad_KNH[part] *= valid_C[:, None]
        # A frozen head needs no gradient, so backward keeps neither u nor W.
        ctx.save_for_backward(grad_KNH, *((u_KNH, weight_DH) if weight_DH.requires_grad else ()))
        ctx.problem = problem
        ctx.mark_non_differentiable(*out[1:])
        return tuple(out)

    @staticmethod
    def backward(
        ctx: _Context, grad_loss_KN: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        grad_KNH, *trained = ctx.saved_tensors
        grad_weight_DH = None
        if trained:
            u_KNH, weight_DH = trained
            grad_weight_DH = torch.zeros_like(weight_DH)
            for chunk in _chunks(u_KNH, weight_DH, ctx.problem):
                part = (chunk.depth, chunk.targets)
                weight_C = grad_loss_KN[part] * ctx.problem.valid_KN[part]
                weighted_CD = chunk.dz_CD * weight_C[:, None].to(chunk.dz_CD.dtype)
                # dL/dW sums over all depths and targets, weighted by the loss weights that forward
                # did not know.
                grad_weight_DH.addmm_(weighted_CD.t(), u_KNH[part])
        return grad_KNH * grad_loss_KN[..., None].to(grad_KNH.dtype), grad_weight_DH, None


def _judge(
    z_CV: Tensor,
    q_CV: Tensor,
    teacher: DraftTeacher,
    *,
    temperature_C: Tensor,
    draft_temperature_C: Tensor | None,
    kind: str,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Returns (loss, KL, acceptance, accepted) and the loss's gradient; overwrites z."""
    p_CV = teacher.p_CD
    goal_CV = teacher.goal_CD
    if draft_temperature_C is not None:
        z_CV.div_(draft_temperature_C[:, None])
    top_C, drafted_C = z_CV.max(-1)
    # KL = sum p log p - sum p z + log Z: the logits suffice, log q is never formed.
    cross_C = torch.linalg.vecdot(goal_CV, z_CV)
    best_z_C = z_CV.gather(-1, teacher.best_C[:, None])[:, 0]
    torch.softmax(z_CV, -1, out=q_CV)
    # log Z = z_max - log q_max, without a second pass over the vocabulary; q_max is at least 1 / D,
    # so its log is finite.
    log_sum_exp_C = top_C - q_CV.gather(-1, drafted_C[:, None])[:, 0].log()
    kl_C = teacher.negative_entropy_C - cross_C + log_sum_exp_C
    acceptance_C = p_CV.gather(-1, drafted_C[:, None])[:, 0]
    sampled_C = None if draft_temperature_C is None else temperature_C >= GREEDY_BELOW
    accepted_C = _accepted(q_CV, drafted_C, teacher, sampled_C)
    by_autograd = None if kind in LOSSES else _own_loss(kind, z_CV, p_CV)
    if draft_temperature_C is not None or kind == "lk_alpha":
        # d alpha / dq: min(p, q) grows with q only where q < p; sum p q grows by p.
        m_CV = p_CV if draft_temperature_C is None else (q_CV < p_CV).to(z_CV.dtype)
        m_q_C = alpha_C = torch.linalg.vecdot(m_CV, q_CV)
        if sampled_C is not None:
            # Summed directly, not as 1 - TV: cancellation would spoil a small alpha, and 1 / alpha.
            alpha_C = torch.minimum(p_CV, q_CV, out=z_CV).sum(-1)
            acceptance_C = torch.where(sampled_C, alpha_C, acceptance_C)

    if by_autograd is not None:
        loss_C, dz_CV = by_autograd
    elif kind == "kl":
        loss_C = kl_C
        dz_CV = q_CV.sub_(goal_CV)
    elif kind == "ce":
        loss_C = log_sum_exp_C - best_z_C
        dz_CV = q_CV.scatter_add_(-1, teacher.best_C[:, None], q_CV.new_full((len(q_CV), 1), -1.0))
    else:
        alpha_C = alpha_C.clamp_min(torch.finfo(torch.float32).tiny)
        loss_C = -alpha_C.log()
        # In the memory of z and q: another [C, V] tensor would take 256 MB on a GPU (CHUNK_LOGITS).
        rise_CV = torch.sub(m_q_C[:, None], m_CV, out=z_CV).div_(alpha_C[:, None])
        dz_CV = q_CV.mul_(rise_CV)
    if draft_temperature_C is not None:
        dz_CV.div_(draft_temperature_C[:, None])
    if teacher.taught_C is not None:
        loss_C = loss_C * teacher.taught_C
        kl_C = kl_C * teacher.taught_C
        dz_CV.mul_(teacher.taught_C[:, None])
    return (loss_C, kl_C, acceptance_C, accepted_C), dz_CV


@functools.cache
def _own_function(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    return load_function(name, key="training.loss")


def _own_loss(name: str, z_CD: Tensor, p_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the loss [C] of the recipe's own function, and its gradient [C, D]."""
    # Autograd is off in forward and backward of a torch.autograd.Function.
    with torch.enable_grad():
        z_CD = z_CD.detach().clone().requires_grad_()
        loss_C = _own_function(name)(z_CD, p_CD)
        if loss_C.shape != p_CD.shape[:1]:
            raise OutriderError(
                f"training.loss = {name!r}: returned shape {list(loss_C.shape)} for z and p of"
                f" shape {list(p_CD.shape)}; return one loss a row: shape {list(p_CD.shape[:1])}"
            )
        (dz_CD,) = torch.autograd.grad(loss_C.sum(), z_CD)
    return loss_C.detach(), dz_CD


def _accepted(
    q_CV: Tensor, drafted_C: Tensor, teacher: DraftTeacher, sampled_C: Tensor | None
) -> Tensor:
    """Returns the acceptance probability [C] given the logged token; 0 if it cannot be drafted.

    An argmax draft is accepted if it is the logged token. Where `sampled_C`, drafts are sampled
    from q, and rejection sampling accepts the logged token x with probability min(1, q(x) / p(x)).
    """
    accepted_C = (drafted_C == teacher.token_C).to(q_CV.dtype)
    if teacher.known_C is not None:
        accepted_C = accepted_C * teacher.known_C
    if sampled_C is None:
        return accepted_C
    q_of_token_C = q_CV.gather(-1, teacher.token_C[:, None])[:, 0]
    if teacher.known_C is not None:
        q_of_token_C = q_of_token_C * teacher.known_C
    p_of_token_C = teacher.logged_C.clamp_min(torch.finfo(torch.float32).tiny)
    ratio_C = (q_of_token_C / p_of_token_C).clamp(max=1.0)
    return torch.where(sampled_C, ratio_C, accepted_C)
