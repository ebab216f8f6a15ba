"""A row's part of the step's loss: against sums over single drafts, for any packing of rows."""

import pytest
import torch
import torch.nn.functional as F

from outrider.data.features.feature_store import SequenceLength
from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from outrider.speculators.acceptance import target_distribution
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.speculators.heads import DraftHead
from outrider.speculators.kinds.drafter import Batch
from outrider.training.batches import MasksOf, assemble_batch
from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import UnrolledDrafts
from outrider.training.distributed.spec import SequenceSampling
from outrider.training.objective import Objective
from outrider.training.packing import TrainingSample, make_samples

DEPTH, H, V = 3, 8, 4
LENGTHS = {"a": (16, 3), "b": (9, 2), "c": (5, 3)}
SAMPLING = {
    "a": SequenceSampling(0.6, 0.9, 0),
    "b": SequenceSampling(0.0, 1.0, 0, hard=True),
    "c": SequenceSampling(1.0, 1.0, 3),
}
SAMPLES, _ = make_samples(
    [SequenceLength(name, *numbers) for name, numbers in LENGTHS.items()], row_tokens=40
)


class RandomStore:
    """Random tokens and states, equal for a sequence in every row."""

    def read(self, sequence_id: str) -> SequenceStates:
        length, start = LENGTHS[sequence_id]
        generator = torch.Generator().manual_seed(ord(sequence_id))
        return SequenceStates(
            token_ids=torch.randint(0, V, (length,), generator=generator, dtype=torch.int32),
            completion_start=start,
            streams={FINAL_NORM: torch.randn(length, H, generator=generator)},
        )


SPEC = FeatureSpec((FeatureStream(FINAL_NORM, H),))


def drafts(batch: Batch) -> torch.Tensor:
    """States of the chains: some function of sequence, anchor and depth."""
    anchors_N = batch.anchor_BT[0].nonzero().squeeze(1)
    states = [
        torch.cos(batch.hidden_BTH[0, anchors_N] * (s + 1) + batch.position_BT[0, anchors_N, None])
        for s in range(DEPTH)
    ]
    return torch.stack(states).requires_grad_()


def by_target_head(u_KNH: torch.Tensor, head_VH: torch.Tensor) -> UnrolledDrafts:
    """Drafts of a drafter that shares the target's head."""
    return UnrolledDrafts(u_KNH, DraftHead(head_VH))


def objective(probabilistic: bool, **settings: str) -> tuple[Objective, torch.Tensor]:
    """Hard labels exist only with greedy drafts."""
    sampling = {
        name: one._replace(hard=one.hard and not probabilistic) for name, one in SAMPLING.items()
    }
    head_VH = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
    return Objective(
        config=TrainingConfig(**settings),
        depth=DEPTH,
        lm_head_VH=head_VH,
        samples=SAMPLES,
        sampling=sampling,
        probabilistic=probabilistic,
    ), head_VH


@pytest.mark.parametrize("probabilistic", [False, True])
def test_rows_add_up_however_sequences_share_them(probabilistic: bool) -> None:
    goal, head_VH = objective(probabilistic, loss="lk_alpha")
    share_K = goal.loss_weights(SAMPLES)
    totals = []
    for rows in ([(0, 1, 2)], [(1,), (2, 0)]):
        total = torch.zeros(())
        gradient = {}
        for row in rows:
            batch = assemble_batch(
                store=RandomStore(), samples=SAMPLES, row=row, row_tokens=40, spec=SPEC
            )
            u_KNH = drafts(batch)
            loss, _ = goal.row_loss(by_target_head(u_KNH, head_VH), batch, share_K)
            (grad_KNH,) = torch.autograd.grad(loss, u_KNH)
            total = total + loss.detach()
            for index, part in zip(
                row, grad_KNH.split([SAMPLES[i].targets(0) for i in row], dim=1), strict=True
            ):
                gradient[index] = part
        totals.append((total, gradient))
    torch.testing.assert_close(totals[0][0], totals[1][0])
    for index in range(3):
        torch.testing.assert_close(totals[0][1][index], totals[1][1][index])


def masks_of_b(sample: TrainingSample, states: SequenceStates) -> TokenMasks | None:
    """Under b's grammar, the tokens 0 and the logged one are allowed."""
    if sample.sequence_id != "b":
        return None
    completion = states.token_ids[states.completion_start :]
    return TokenMasks((1 | 1 << completion)[:, None].int(), torch.arange(len(completion)))


@pytest.mark.parametrize("masks_of", [None, masks_of_b])
def test_the_loss_is_the_sum_over_single_drafts(masks_of: MasksOf | None) -> None:
    """Draft by draft: token, teacher, the request's sampling parameters, weight.

    b has hard labels, or a grammar with masks.
    """
    goal, head_VH = objective(False, loss="kl")
    batch = assemble_batch(
        store=RandomStore(),
        samples=SAMPLES,
        row=(0, 1, 2),
        row_tokens=40,
        spec=SPEC,
        masks_of=masks_of,
    )
    u_KNH = drafts(batch)
    loss, judged = goal.row_loss(by_target_head(u_KNH, head_VH), batch, goal.loss_weights(SAMPLES))
    decay_K = [0.6**s / sum(0.6**depth for depth in range(DEPTH)) for s in range(DEPTH)]
    counts_K = [sum(sample.targets(s) for sample in SAMPLES) for s in range(DEPTH)]
    expected = 0.0
    kl_K = [0.0] * DEPTH
    column = 0
    for sample in SAMPLES:
        features = RandomStore().read(sample.sequence_id)
        sampling = SAMPLING[sample.sequence_id]
        anchors = range(sample.first_anchor, sample.length - 2)
        for i in anchors:
            for s in range(DEPTH):
                if (index := i + 2 + s) < sample.length:
                    logits_V = head_VH @ features.hidden[index - 1]
                    token = int(features.token_ids[index])
                    if sampling.hard and masks_of:
                        forbidden = [v for v in range(V) if v not in (0, token)]
                        logits_V[forbidden] = -torch.inf
                    parameters = torch.tensor(sampling[:3])[:, None]
                    p_V = target_distribution(logits_V[None], *parameters)[0]
                    if sampling.hard and not masks_of:
                        p_V = F.one_hot(torch.tensor(token), V).float()
                    log_q_V = (head_VH @ u_KNH[s, column + i - anchors[0]]).log_softmax(-1)
                    kl = (torch.special.xlogy(p_V, p_V) - p_V * log_q_V).sum().item()
                    kl_K[s] += kl
                    expected += decay_K[s] / counts_K[s] * kl
        column += len(anchors)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert judged.kl_KN.sum(-1).tolist() == pytest.approx(kl_K, rel=1e-5)
    # A surplus row does not count.
    loss, judged = goal.row_loss(by_target_head(u_KNH, head_VH), batch, torch.zeros(DEPTH))
    assert loss == 0 and not judged.kl_KN.any()
