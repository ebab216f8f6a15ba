"""Predicted memory against what autograd keeps, what torch allocates, and DeepSpeed's estimate."""

import dataclasses

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from outrider.pipeline.plan.training_cost import ASSUMED_GPU, USABLE
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.size import RowShape
from outrider.training import memory
from outrider.training.memory import MemoryPlan
from tests.r1_config import R1, mtp_size
from tests.tiny import tiny_config

SMALL = tiny_config().to_dict() | {"num_nextn_predict_layers": 1, "num_hidden_layers": 3}
LONG = SMALL | {"num_attention_heads": 16}
SPARSE = SMALL | {"hidden_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 8}


def row_of(sequences: list[tuple[int, int]], vocab: int, read: int) -> tuple[torch.Tensor, ...]:
    """A packed row with random inputs, as `Drafter.unroll` takes it."""
    lengths = torch.tensor([length for length, _ in sequences])
    marks = [torch.zeros(tokens, dtype=torch.bool) for tokens, _ in sequences]
    for mark, (tokens, anchors) in zip(marks, sequences, strict=True):
        mark[tokens - 2 - anchors : tokens - 2] = True
    return (
        torch.randint(0, vocab, (1, int(lengths.sum()))),
        torch.randn(1, int(lengths.sum()), read).bfloat16(),
        torch.arange(len(sequences)).repeat_interleave(lengths)[None],
        torch.cat([torch.arange(length) for length, _ in sequences])[None],
        torch.cat(marks)[None],
    )


def mtp_layer(settings: dict) -> MTPSpeculator:
    torch.manual_seed(0)
    speculator = MTPSpeculator(DeepseekArch.from_config(settings)).bfloat16()
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    return speculator


def random_ends(vocab: int, hidden: int) -> TargetEnds:
    return TargetEnds(*(torch.randn(vocab, hidden).bfloat16() for _ in range(2)))


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("settings", [LONG, SPARSE], ids=["attention_is_most", "experts_are_most"])
def test_backwards_peak_is_predicted(monkeypatch, settings: dict, recompute: bool) -> None:
    monkeypatch.setattr(memory, "KEPT_AT_MOST", 0 if recompute else 10**12)
    monkeypatch.setitem(memory.CHUNK_LOGITS, "cpu", 0)  # the loss does not run here
    monkeypatch.setattr(memory, "CHUNK_ROWS", 0)
    tokens, depth, hidden = 600, 3, settings["hidden_size"]
    row = RowShape.of_sequences([(tokens, tokens - 2)])
    size = mtp_size(settings)
    steps = MemoryPlan(size, row, tokens, depth, device="cpu").phases()["steps"]
    speculator, ends = mtp_layer(settings), random_ends(size.vocab, hidden)
    speculator.recompute = recompute
    inputs = row_of([(tokens, tokens - 2)], size.vocab, hidden)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        u_KNH = torch.stack(speculator.unroll(ends, *inputs, depth)[1])
        u_KNH.backward(torch.ones_like(u_KNH))
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    parts = ("activations", "drafted_states", "gradients")
    assert sum(steps.get(part, 0) for part in parts) == pytest.approx(peak, rel=0.15)


def plan(**changes) -> MemoryPlan:
    return dataclasses.replace(MemoryPlan(mtp_size(R1), RowShape.full(4096), 4096, 3), **changes)


def test_r1_fits_with_rows_of_32768_and_a_tenth_to_spare() -> None:
    """All trained, depth 3, ZeRO-2 on 8 H200; every phase, and the host of the node."""
    r1 = plan(row=RowShape.full(32768), row_tokens=32768, zero_stage=2, processes=8)
    assert r1.recompute
    assert r1.peak()[1] < USABLE * ASSUMED_GPU and 1.1 * r1.peak()[1] < ASSUMED_GPU
    assert r1.host_bytes(8) < 256e9
    assert not plan(row_tokens=1024).recompute, "short rows are not computed twice"


@pytest.mark.parametrize("processes", [1, 8])
def test_model_states_are_what_deepspeed_estimates(processes: int) -> None:
    """Gradients are whole until the last depth; the newest depth's are separate."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    sharded = plan(zero_stage=2, processes=processes)
    parts, largest = sharded.phases()["steps"], mtp_size(R1).largest
    ours = sum(parts[part] for part in ("weights", "master_weights", "adam_moments", "gradients"))
    _, theirs = estimate_zero2_model_states_mem_needs(sharded.trained, processes, 1, False, 1.0)
    newest = 2 * memory.BUCKET
    newest += max(2 * largest, 4 * min(largest, sharded.trained // processes))
    whole = 2 * sharded.trained * (1 - 1 / processes)
    assert ours == pytest.approx(theirs + whole + newest, rel=1e-6)
