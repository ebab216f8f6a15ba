"""The DSpark head against vLLM's walk over a block, token by token.

The block is that of tests/speculators/kinds/dflash/test_dflash.py, the walk is `_sample_sequential`
of vLLM's dspark/speculator.py over the heads of its qwen3_dspark.py.
"""

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.acceptance import accept_matrix, pad_anchors, replay_chain
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.dflash.layer import DFlashHead
from outrider.speculators.kinds.dspark.kind import DSpark
from outrider.speculators.kinds.dspark.layer import DSparkHead
from outrider.speculators.unroll import Slots, valid_BT
from outrider.training.losses import distillation_loss
from outrider.training.teacher import ServedSampling
from tests.dflash_head import write_dspark_head
from tests.speculators.kinds.dflash import test_dflash
from tests.speculators.kinds.eagle3.test_eagle3_unroll import LAYERS
from tests.speculators.literal_engine import DEPTH, differences, packed_row
from tests.tiny import HIDDEN, VOCAB


class LiteralEngine(test_dflash.LiteralEngine):
    """A block of K slots, all of which draft, and the walk over it."""

    masks = DEPTH - 1
    first = 0

    def walk(self, us: list[Tensor], anchor_token: int) -> list[int]:
        """Drafts, each of which reads the draft before it."""
        drafts = []
        previous = anchor_token
        for u_H in us:
            embed_R = self.tensors["markov_head.markov_w1.weight"][previous]
            bias_D = self.tensors["markov_head.markov_w2.weight"] @ embed_R
            of_draft = int((self.tensors["lm_head.weight"] @ u_H + bias_D).argmax())
            previous = of_draft + int(self.tensors["d2t"][of_draft])
            drafts.append(previous)
        return drafts

    def states(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """[u ; m] of every (draft, anchor) that has a token to predict, in a text of `tokens`."""
        w1 = self.tensors["markov_head.markov_w1.weight"]
        found = super().states(tokens, aux_TX)
        return {(s, i): torch.cat([u, w1[tokens[i + 1 + s]]]) for (s, i), u in found.items()}


def both(target: Path, directory: Path, **options: object) -> tuple[DSparkHead, LiteralEngine]:
    write_dspark_head(target, directory, layers=LAYERS, mask_token=test_dflash.MASK, **options)
    head = DSpark().load(directory, target, torch.float32)
    assert isinstance(head, DSparkHead)
    return head, LiteralEngine(directory, load_target_ends(target))


@pytest.mark.parametrize("options", [{}, {"heads": 4, "kv_heads": 2, "rank": 5}])
def test_unroll_is_what_the_engine_computes(
    target: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    head, engine = both(target, tmp_path / "head", **options)
    assert differences(head, engine).max() < 2e-4


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_replay_has_the_steps_of_an_engine_that_walks_over_its_own_drafts(
    target: Path, tmp_path: Path, seed: int
) -> None:
    """A text of which random numbers of drafts are accepted in each step."""
    head, engine = both(target, tmp_path / "head")
    torch.manual_seed(seed)
    drawn = random.Random(seed)
    aux_TX = torch.randn(60, 2 * HIDDEN)
    tokens = [3, 5]
    accepted = []
    seen = []
    while len(tokens) < 40:
        anchor = len(tokens) - 2
        seen += [engine.context(aux_TX[i], i) for i in range(len(seen), anchor + 1)]
        drafts = engine.walk(engine.block(tokens[-1], anchor, seen), tokens[-1])
        accepted.append(drawn.randint(0, DEPTH))
        rejected = drafts[accepted[-1] : accepted[-1] + 1]
        other = drawn.choice([token for token in range(VOCAB) if [token] != rejected])
        tokens += [*drafts[: accepted[-1]], other]
    anchors = len(tokens) - 2  # the prefill delivers the second token
    token_BT = torch.tensor([tokens])
    place_BT = torch.arange(len(tokens))[None]
    row = token_BT, aux_TX[None, : len(tokens)], torch.zeros_like(place_BT), place_BT
    _, states = head.unroll(engine.ends, Slots(*row, place_BT < anchors), DEPTH)
    a_NK = accept_matrix(
        states=states,
        head=head.head(engine.ends),
        lm_head_VH=engine.ends.lm_head_VH,
        token_ids_BT=token_BT,
        hidden_BTH=torch.zeros(1, len(tokens), HIDDEN),
        row_N=torch.zeros(anchors, dtype=torch.long),
        anchor_N=torch.arange(1, anchors + 1),
        last_N=torch.full((anchors,), len(tokens) - 1),
        temperature_N=torch.zeros(anchors),
        top_p_N=torch.ones(anchors),
    )
    anchors_R = torch.tensor([anchors])
    chain = replay_chain(pad_anchors(a_NK, anchors_R), anchors_R)
    assert float(chain.steps_RK[0, -1]) == len(accepted)
    at_least = [sum(count >= j for count in accepted) for j in range(1, DEPTH + 1)]
    assert chain.accepted_RKK[0, -1].tolist() == at_least


def test_gradients_are_those_of_the_written_out_loss(target: Path, tmp_path: Path) -> None:
    """Of the distillation loss and the confidence's, in float64."""
    head, engine = both(target, tmp_path / "head")
    head = head.double()
    ends = TargetEnds(*(e.double() for e in vars(engine.ends).values()))
    token_BT, aux_BTX, sequence_BT, position_BT = (tensor[:1] for tensor in packed_row(2 * HIDDEN))
    anchor_BT = valid_BT(sequence_BT, DEPTH - 1)
    row = Slots(
        token_ids_BT=token_BT,
        inputs_BTX=aux_BTX.double(),
        sequence_BT=sequence_BT,
        position_BT=position_BT,
        anchor_BT=anchor_BT,
    )
    anchors_N = anchor_BT.flatten().nonzero()[:, 0]
    count = len(anchors_N)
    teacher_NH = torch.randn(count, HIDDEN, dtype=torch.float64)
    token_N = token_BT[0, anchors_N + 2]
    valid_KN = torch.ones(DEPTH, count, dtype=torch.bool)
    served = ServedSampling(torch.ones(count), torch.ones(count), False)
    weight_KN = torch.rand(DEPTH, count, dtype=torch.float64)

    _, states = head.unroll(ends, row, DEPTH)
    u_KNX = torch.stack(states)
    own = head.head(ends)
    loss_KN, judged = distillation_loss(
        u_KNH=u_KNX,
        teacher_NH=teacher_NH,
        token_N=token_N,
        valid_KN=valid_KN,
        lm_head_VH=ends.lm_head_VH,
        served=served,
        kind="kl",
        head=own,
    )
    ((loss_KN + own.auxiliary_loss(u_KNX, judged.acceptance_KN)) * weight_KN).sum().backward()
    found = {name: each.grad.clone() for name, each in head.named_parameters()}
    head.zero_grad()

    _, states = DFlashHead.unroll(head, ends, row, DEPTH)
    ids_D = head.target_ids_D
    p_ND = F.linear(teacher_NH, ends.lm_head_VH).softmax(-1)[:, ids_D]
    goal_ND = p_ND / p_ND.sum(-1, keepdim=True)
    w1, w2 = (each.weight for each in head.markov_head.children())
    proj = head.confidence_head.proj
    total = torch.zeros((), dtype=torch.float64)
    for s, u_NH in enumerate(states):
        m_NR = w1[token_BT[0, anchors_N + 1 + s]]
        z_ND = head.lm_head(u_NH) + m_NR @ w2.T
        kl_N = (goal_ND * (goal_ND.log() - z_ND.log_softmax(-1))).sum(-1)
        accepted_N = p_ND.gather(-1, z_ND.argmax(-1, keepdim=True))[:, 0]
        confidence_N = torch.sigmoid(proj(torch.cat([u_NH, m_NR], dim=-1).detach())[:, 0])
        entropy_N = F.binary_cross_entropy(confidence_N, accepted_N, reduction="none")
        total = total + ((kl_N + entropy_N) * weight_KN[s]).sum()
    total.backward()
    assert len(found) > 15
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-5, msg=name)
