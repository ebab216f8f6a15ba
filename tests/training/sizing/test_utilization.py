"""Counted FLOPs against those that torch counts while the unroll and the loss run."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from outrider.common.files import read_json
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.unroll import unroll_anchors
from outrider.training.losses import distillation_loss
from outrider.training.sizing.utilization import utilization
from outrider.training.teacher import Served
from tests.tiny import HIDDEN, VOCAB, write_tiny_target

DEPTH, LENGTH, FIRST = 3, 40, 12


def test_step_flops_are_what_torch_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_tiny_target(tmp_path / "target")
    speculator, ends = load_mtp(target), load_target_ends(target)
    # Only the experts that a token is routed to; computing all of them would be faster on a CPU.
    monkeypatch.setattr(type(speculator.block.mlp.experts), "DENSE_UP_TO", 0)
    torch.manual_seed(0)
    anchor_BT = torch.zeros(1, LENGTH, dtype=torch.bool)
    anchor_BT[0, FIRST : LENGTH - 2] = True
    anchors = int(anchor_BT.sum())
    token_BT, hidden_BTH = torch.randint(0, VOCAB, (1, LENGTH)), torch.randn(1, LENGTH, HIDDEN)
    zeros_BT, position_BT = torch.zeros(1, LENGTH, dtype=torch.long), torch.arange(LENGTH)[None]
    with FlopCounterMode(display=False) as counter:
        _, states = unroll_anchors(
            speculator, ends, token_BT, hidden_BTH, zeros_BT, position_BT, anchor_BT, DEPTH
        )
        loss_KN, _ = distillation_loss(
            torch.stack(states),
            torch.randn(anchors, HIDDEN),
            torch.zeros(anchors, dtype=torch.long),
            torch.ones(DEPTH, anchors, dtype=torch.bool),
            ends.lm_head_VH,
            Served(torch.ones(anchors), torch.ones(anchors), probabilistic=False),
            "kl",
        )
        loss_KN.sum().backward()
    size = mtp_size(read_json(target / "config.json"))
    counted = size.step_flops(DEPTH, [LENGTH], [anchors])
    # torch also counts the masked half of the scores, and no gradient for the inputs of depth 0,
    # which are not trained.
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_no_share_of_a_peak_that_nobody_knows() -> None:
    assert utilization(1e12, 1.0, torch.device("cpu"), "bf16", 1) is None
