"""Predicted memory against what autograd keeps, what torch allocates, and DeepSpeed's estimate."""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from outrider.pipeline.plan.training_cost import ASSUMED_GPU, USABLE
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.eagle3.closed_form import Ridge
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.size import drafter_size
from outrider.speculators.unroll import Slots
from outrider.training import memory
from outrider.training.memory import MemoryPlan
from tests.r1_config import R1, mtp_size
from tests.tiny import HIDDEN, tiny_config

SMALL = tiny_config().to_dict() | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_nextn_predict_layers": 1,
    "num_hidden_layers": 3,
}
LONG = SMALL | {"num_attention_heads": 16}
SPARSE = SMALL | {"hidden_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 8}


def peak_bytes(work: Callable[[], object]) -> int:
    """Most that torch holds at once while `work` runs, beyond what exists before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


def mtp_layer(settings: dict) -> MTPSpeculator:
    torch.manual_seed(0)
    speculator = MTPSpeculator(settings).bfloat16()
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    return speculator


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("settings", [LONG, SPARSE], ids=["attention_is_most", "experts_are_most"])
def test_backwards_peak_is_predicted(monkeypatch, settings: dict, recompute: bool) -> None:
    monkeypatch.setattr(memory, "KEPT_AT_MOST", 0 if recompute else 10**12)
    monkeypatch.setitem(memory.CHUNK_LOGITS, "cpu", 0)  # the loss does not run here
    monkeypatch.setattr(memory, "CHUNK_ROWS", 0)
    tokens = 600
    depth = 3
    hidden = settings["hidden_size"]
    size = mtp_size(settings)
    steps = MemoryPlan(size, tokens, depth, device="cpu").phases()["steps"]
    speculator = mtp_layer(settings)
    speculator.recompute = recompute
    ends = TargetEnds(*(torch.randn(size.vocab, hidden).bfloat16() for _ in range(2)))
    place_BT = torch.arange(tokens)[None]
    row = Slots(
        token_ids_BT=torch.randint(0, size.vocab, (1, tokens)),
        inputs_BTX=torch.randn(1, tokens, hidden).bfloat16(),
        sequence_BT=torch.zeros_like(place_BT),
        position_BT=place_BT,
        anchor_BT=place_BT < tokens - 2,
    )

    def step() -> None:
        u_KNH = torch.stack(speculator.unroll(ends, row, depth)[1])
        u_KNH.backward(torch.ones_like(u_KNH))

    peak = peak_bytes(step)
    parts = ("activations", "drafted_states", "gradients")
    assert sum(steps.get(part, 0) for part in parts) == pytest.approx(peak, rel=0.15)


def test_the_closed_form_fit_is_predicted() -> None:
    """The regression of EAGLE-3's first matrices, over three states of the target and a token."""
    config = tiny_config().to_dict() | {"num_hidden_layers": 8}
    size = drafter_size(Eagle3(), Eagle3().config(config, HeadConfig(), None), config)
    x_NX = torch.randn(64, size.read + HIDDEN)
    y_NY = torch.randn(64, HIDDEN)

    def fit() -> None:
        ridge = Ridge(x_NX.shape[1], HIDDEN, torch.device("cpu"))
        for ridge.rows in (0, 1):  # the second is held out
            ridge.add(x_NX, y_NY)
        ridge.solve()

    phases = MemoryPlan(size, 64, 3, warm=False, fitted=True).phases()
    assert phases["fit"]["regression"] == pytest.approx(peak_bytes(fit), rel=0.05)
    assert "fit" not in plan().phases()


def plan(**changes) -> MemoryPlan:
    return dataclasses.replace(MemoryPlan(mtp_size(R1), 4096, 3), **changes)


def test_r1_fits_with_rows_of_32768_and_a_tenth_to_spare() -> None:
    """All trained, depth 3, ZeRO-2 on 8 H200; every phase, and the host of the node."""
    r1 = plan(row_tokens=32768, zero_stage=2, processes=8)
    assert r1.recompute
    assert r1.peak()[1] < USABLE * ASSUMED_GPU and 1.1 * r1.peak()[1] < ASSUMED_GPU
    assert r1.host_bytes(8) < 256e9
    assert not plan(row_tokens=1024).recompute, "short rows are not computed twice"


@pytest.mark.parametrize("processes", [1, 8])
def test_model_states_are_what_deepspeed_estimates(processes: int) -> None:
    """Gradients are whole until the last depth; the newest depth's are separate."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    sharded = plan(zero_stage=2, processes=processes)
    parts = sharded.phases()["steps"]
    largest = mtp_size(R1).largest
    ours = sum(parts[part] for part in ("weights", "master_weights", "adam_moments", "gradients"))
    _, theirs = estimate_zero2_model_states_mem_needs(
        sharded.num_trained_parameters, processes, 1, False, 1.0
    )
    newest = 2 * memory.BUCKET
    newest += max(2 * largest, 4 * min(largest, sharded.num_trained_parameters // processes))
    whole = 2 * sharded.num_trained_parameters * (1 - 1 / processes)
    assert ours == pytest.approx(theirs + whole + newest, rel=1e-6)
