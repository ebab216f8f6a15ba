"""The target's distribution over the tokens that a drafter can draft.

    taught = draft_teacher(teacher, head, token_C)

With a draft vocabulary of D < V tokens, the draft learns the target's distribution renormalized
over these tokens (KL and cross-entropy have no finite value otherwise), and is accepted against the
target's own probabilities, which are not renormalized. Over the full vocabulary the two are one.

Shapes: C rows of a chunk, V target vocabulary, D draft vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from outrider.speculators.heads import DraftHead
from outrider.training.teacher import Teacher


class DraftTeacher(NamedTuple):
    """The target's distribution of a chunk, in draft tokens."""

    p_CD: Tensor
    """The target's probabilities: what drafts are accepted against."""
    goal_CD: Tensor
    """What the draft learns: p renormalized over the draft vocabulary."""
    best_C: Tensor
    """argmax p, a draft token"""
    negative_entropy_C: Tensor
    """sum over the goal of goal log goal, in nats"""
    logged_C: Tensor
    """The target's probability of the logged token"""
    token_C: Tensor
    """The logged token as a draft token"""
    known_C: Tensor | None
    """False where the logged token is outside the draft vocabulary; None: none is"""
    taught_C: Tensor | None
    """False where the target gives the draft vocabulary no mass, so there is no goal; None: none"""


def draft_teacher(teacher: Teacher, head: DraftHead | None, token_C: Tensor) -> DraftTeacher:
    """`teacher` over the draft vocabulary of `head`; unchanged for the target's vocabulary."""
    if head is None or head.target_ids_D is None:
        entropy_C, logged_C = teacher.negative_entropy_C, teacher.logged_C
        p_CV, best_C = teacher.p_CV, teacher.best_C
        return DraftTeacher(p_CV, p_CV, best_C, entropy_C, logged_C, token_C, None, None)
    p_CD = teacher.p_CV[:, head.target_ids_D]
    mass_C = p_CD.sum(-1)
    goal_CD = p_CD / mass_C.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    token_C, known_C = head.from_target(token_C)
    return DraftTeacher(
        p_CD,
        goal_CD,
        p_CD.argmax(-1),
        torch.special.xlogy(goal_CD, goal_CD).sum(-1),
        teacher.logged_C,
        token_C,
        known_C,
        mass_C > 0,
    )
