"""Gradients of rows and processes are added in float32, whatever `training.compute` is."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import make_accelerator, set_training_environment
from tests.training.forked_ranks import fork_ranks

PROCESSES, ROWS_EACH, WIDTH = 2, 64, 16


def gradients() -> torch.Tensor:
    """[row of a process, process, width]: one large gradient, then small ones, exact in bf16.

    A small one is 2^-9 of the large: the sum of both in bf16 is the large one.
    """
    grad_RPW = torch.full((ROWS_EACH, PROCESSES, WIDTH), 2.0**-9)
    grad_RPW[0, 0] = 1.0
    return grad_RPW


def measure(folder: Path) -> None:
    """One rank: the gradient norm of one step by ZeRO stage, as DeepSpeed computes it."""
    set_training_environment()
    from accelerate.state import AcceleratorState
    from accelerate.utils import DummyOptim

    norms = {}
    for stage in (1, 2, 3):
        config = TrainingConfig(
            zero_stage=stage,
            processes=PROCESSES,
            rows_per_step=PROCESSES * ROWS_EACH,
        )
        config = config.model_copy(update={"max_grad_norm": 1e9})
        accelerator = make_accelerator(config, folder)
        rank = accelerator.process_index
        world = accelerator.num_processes
        assert world == PROCESSES
        model = nn.Linear(WIDTH, 1, bias=False)
        prepared, optimizer = accelerator.prepare(model, DummyOptim(model.parameters()))
        for grad_W in gradients()[:, rank]:
            with accelerator.accumulate(prepared):
                loss = prepared(grad_W.bfloat16()).sum()
                accelerator.backward(loss * ROWS_EACH * world)
                optimizer.step()
                optimizer.zero_grad()
        norms[stage] = float(accelerator.deepspeed_engine_wrapped.get_global_grad_norm())
        AcceleratorState._reset_state(reset_partial_state=True)
    if rank == 0:
        (folder / "norms.json").write_text(json.dumps(norms))


def test_small_gradients_are_not_lost_in_any_zero_stage(tmp_path: Path) -> None:
    exact = gradients().double().sum((0, 1)).norm().item()
    in_bf16 = torch.zeros(WIDTH, dtype=torch.bfloat16)
    for grad_W in gradients().flatten(0, 1):
        in_bf16 += grad_W.bfloat16()
    assert in_bf16.double().norm().item() == pytest.approx(exact / 1.248, rel=1e-3), (
        "all small lost"
    )
    fork_ranks(measure, tmp_path, PROCESSES)
    norms = json.loads((tmp_path / "norms.json").read_text())
    assert norms == pytest.approx(dict.fromkeys(("1", "2", "3"), exact), rel=1e-6)
