"""DSpark heads learn a bigram language, behind whose first draft a block cannot know the next.

A token has one successor or four equally likely ones. The target's states are the logarithms of
the next token's distribution, its head is the identity, and the drafters read the current token.
"""

import pytest
import torch
from torch import Tensor

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.dflash.layer import DFlashHead
from outrider.speculators.kinds.dspark.layer import DSparkHead
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.unroll import valid_BT
from outrider.training.losses import Judged, confidence_loss, distillation_loss
from outrider.training.objective import align_to_targets
from outrider.training.teacher import Served

VOCAB, HIDDEN, DEPTH, TOKENS, STEPS = 16, 64, 3, 120, 120

SHAPE = EagleShape(
    vocab=VOCAB,
    drafts=VOCAB,
    target_hidden=HIDDEN,
    hidden=HIDDEN,
    layers=(1,),
    intermediate=64,
    norm_eps=1e-6,
    heads=1,
    kv_heads=1,
    head_dim=64,
    theta=10000.0,
    latent=None,
    mask_token=0,
    markov_rank=16,
)


def bigrams() -> Tensor:
    """p [V, V]: even tokens have four successors, odd ones a single one."""
    p_VV = torch.zeros(VOCAB, VOCAB)
    for token in range(VOCAB):
        p_VV[token, torch.randperm(VOCAB)[: 1 if token % 2 else 4]] = 1
    return p_VV / p_VV.sum(-1, keepdim=True)


def text(p_VV: Tensor) -> Tensor:
    tokens = [0]
    while len(tokens) < TOKENS:
        tokens.append(int(torch.multinomial(p_VV[tokens[-1]], 1)))
    return torch.tensor(tokens)


def drafted(
    head: DFlashHead, ends: TargetEnds, p_VV: Tensor, token_T: Tensor
) -> tuple[Tensor, Judged, Tensor, Tensor]:
    """The loss [K, N], what it found, where it counts, and the states; drafts are greedy."""
    place_BT = torch.arange(TOKENS)[None]
    sequence_BT = torch.zeros_like(place_BT)
    anchor_BT = valid_BT(sequence_BT, 0)
    inputs_BTX = ends.embed(token_T)[None]
    _, states = head.unroll(
        ends, token_T[None], inputs_BTX, sequence_BT, place_BT, anchor_BT, DEPTH
    )
    anchors_N = anchor_BT[0].nonzero()[:, 0]
    u_KNX, valid_KN = align_to_targets(torch.stack(states), sequence_BT[0, anchors_N])
    teacher_NH = torch.zeros(len(anchors_N), HIDDEN)
    teacher_NH[:, :VOCAB] = p_VV[token_T[anchors_N + 1]].clamp_min(1e-9).log()
    ones_N = torch.ones(len(anchors_N))
    served, own = Served(ones_N, ones_N, False), head.head(ends)
    loss_KN, judged = distillation_loss(
        u_KNX, teacher_NH, token_T[anchors_N + 2], valid_KN, ends.lm_head_VH, served, "kl", own
    )
    if own.confidence_1H is not None:
        loss_KN = loss_KN + confidence_loss(u_KNX, own, judged)
    return loss_KN, judged, valid_KN, u_KNX


@pytest.fixture(scope="module")
def learned() -> dict[str, tuple[DFlashHead, list[float], Judged, Tensor, Tensor, float]]:
    """Each kind's head after the same texts, its losses, what it does on another text, and the
    largest share of that text's drafts that can be accepted."""
    found = {}
    for kind, module in (("dflash", DFlashHead), ("dspark", DSparkHead)):
        torch.manual_seed(0)
        p_VV = bigrams()
        embedding_VH = torch.randn(VOCAB, HIDDEN)
        ends = TargetEnds(embedding_VH, torch.eye(VOCAB, HIDDEN))
        texts = [text(p_VV) for _ in range(6)]
        head, losses = module(SHAPE, None), []
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
        for step in range(STEPS):
            loss_KN, _, valid_KN, _ = drafted(head, ends, p_VV, texts[step % 5])
            loss = (loss_KN * valid_KN).sum() / valid_KN.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            _, judged, valid_KN, u_KNX = drafted(head, ends, p_VV, texts[5])
        best = p_VV[texts[5][1:-1]].max(-1).values.mean().item()
        found[kind] = head, losses, judged, valid_KN, u_KNX, best
    return found


def test_the_markov_head_drafts_what_follows_the_drafts_before(learned: dict) -> None:
    accepted = {}
    for kind, (_, losses, judged, valid_KN, _, best) in learned.items():
        assert losses[-1] < 0.6 * losses[0]
        accepted[kind] = (judged.acceptance_KN.sum(-1) / valid_KN.sum(-1) / best).tolist()
    for deep in (1, 2):
        assert accepted["dspark"][deep] > 0.9 and accepted["dflash"][deep] < 0.75, accepted


def test_the_confidence_is_the_share_of_accepted_drafts(learned: dict) -> None:
    head, _, judged, valid_KN, u_KNX, _ = learned["dspark"]
    with torch.no_grad():
        any_target = TargetEnds(*(torch.zeros(VOCAB, HIDDEN) for _ in "EW"))
        confidence_KN = head.head(any_target).confidence(u_KNX).sigmoid()
    shares = judged.acceptance_KN[valid_KN]
    assert (shares > 0.9).sum() > 20 and (shares < 0.3).sum() > 20
    difference = confidence_KN[valid_KN] - shares
    assert difference.mean().abs() < 0.03 and difference.abs().mean() < 0.15
