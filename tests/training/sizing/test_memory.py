"""Predicted memory against what torch allocates and what DeepSpeed estimates."""

import dataclasses

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from outrider.pipeline.plan.training_cost import ASSUMED_GPU, FP8_BYTES, USABLE
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.size import RowShape
from outrider.training import losses
from outrider.training.sizing import memory
from outrider.training.sizing.memory import MemoryPlan
from tests.r1_config import R1
from tests.tiny import VOCAB, tiny_config

SMALL = tiny_config().to_dict() | {"num_nextn_predict_layers": 1}
LONG = SMALL | {"num_attention_heads": 16}
SPARSE = SMALL | {"hidden_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 8}
WIDE = SMALL | {"hidden_size": 512, "moe_intermediate_size": 256, "n_routed_experts": 32}


def mtp_layer(settings: dict) -> MTPSpeculator:
    torch.manual_seed(0)
    speculator = MTPSpeculator(DeepseekArch.from_config(settings)).bfloat16()
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    return speculator


def peak_of_backward(
    speculator: torch.nn.Module, vocab: int, hidden: int, read: int, tokens: int, depth: int
) -> int:
    """Peak bytes that torch holds in forward and backward, in bf16, without the weights.

    The drafter reads `read` values of the target's states.
    """
    ends = TargetEnds(*(torch.randn(vocab, hidden).bfloat16() for _ in range(2)))
    inputs = (
        torch.randint(0, vocab, (1, tokens)),
        torch.randn(1, tokens, read).bfloat16(),
        torch.zeros(1, tokens, dtype=torch.long),
        torch.arange(tokens)[None],
        torch.arange(tokens)[None] < tokens - 2,
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        _, states = speculator.unroll(ends, *inputs, depth)
        u_KNH = torch.stack(states)
        del states
        u_KNH.backward(torch.ones_like(u_KNH))
    events = recorded.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    held, peak = 0, 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@pytest.fixture
def no_loss(monkeypatch) -> None:
    """The loss is not run here, so its chunk does not count."""
    monkeypatch.setitem(memory.CHUNK_LOGITS, "cpu", 0)
    monkeypatch.setattr(memory, "CHUNK_ROWS", 0)


def predicted(plan: MemoryPlan) -> dict[str, int]:
    steps = plan.phases()["steps"]
    return {part: steps.get(part, 0) for part in ("activations", "drafted_states", "gradients")}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(
    ("settings", "tokens", "depth", "heavy"),
    [
        (LONG, 600, 2, "activations"),
        (LONG, 600, 4, "activations"),
        (SPARSE, 600, 2, "activations"),
        (WIDE, 40, 2, "gradients"),
    ],
    ids=["attention_is_most", "deep", "experts_are_most", "weights_are_most"],
)
def test_backwards_peak_is_predicted_within_a_tenth(
    monkeypatch, no_loss, settings, tokens, depth, heavy, recompute
):
    monkeypatch.setattr(memory, "KEPT_AT_MOST", 0 if recompute else 10**12)
    row = RowShape.of_sequences([(tokens, tokens - 2)])
    dynamic = predicted(MemoryPlan(mtp_size(settings), row, tokens, depth, device="cpu"))
    assert max(dynamic, key=dynamic.__getitem__) == heavy
    hidden = settings["hidden_size"]
    speculator = mtp_layer(settings)
    speculator.recompute = recompute
    measured = peak_of_backward(speculator, VOCAB, hidden, hidden, tokens, depth)
    assert sum(dynamic.values()) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("layer_type", ["llama", "mla"])
@pytest.mark.parametrize(("hidden", "tokens"), [(64, 600), (512, 40)])
def test_the_peak_of_a_head_is_predicted_within_a_tenth(no_loss, layer_type, hidden, tokens):
    target, depth = SMALL | {"hidden_size": hidden, "num_hidden_layers": 8}, 3
    kind = trainable_kind("eagle3")
    config = kind.config(target, HeadConfig(layer_type=layer_type), None)
    size = kind.size(config, target)
    # Neither is the head's part of backward.
    without_head = {name: shape for name, shape in size.shapes.items() if "lm_head" not in name}
    size = dataclasses.replace(size, shapes=without_head)
    row = RowShape.of_sequences([(tokens, tokens - 2)])
    torch.manual_seed(0)
    head = EagleHead(EagleShape.read(config, target, "config.json"), None).bfloat16()
    measured = peak_of_backward(head, VOCAB, hidden, 3 * hidden, tokens, depth)
    parts = predicted(MemoryPlan(size, row, tokens, depth, device="cpu"))
    assert sum(parts.values()) == pytest.approx(measured, rel=0.1)


def plan(**changes) -> MemoryPlan:
    return dataclasses.replace(MemoryPlan(mtp_size(R1), RowShape.full(4096), 4096, 3), **changes)


def test_r1_fits_with_rows_of_32768_and_a_tenth_to_spare() -> None:
    """All trained, depth 3, ZeRO-2 on 8 H200; every phase, and the host of the node."""
    long = {"row": RowShape.full(32768), "row_tokens": 32768, "frozen_value_bytes": FP8_BYTES}
    r1 = plan(**long, zero_stage=2, processes=8)
    assert r1.recompute
    assert r1.peak()[1] < USABLE * ASSUMED_GPU and 1.1 * r1.peak()[1] < ASSUMED_GPU
    assert r1.host_bytes(8) < 256e9
    assert not plan(row_tokens=1024).recompute, "short rows are not computed twice"


@pytest.mark.parametrize("processes", [1, 8])
def test_model_states_are_what_deepspeed_estimates(processes: int) -> None:
    """And the gradients are whole until the last depth, and the newest of a depth is apart."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    sharded = plan(zero_stage=2, processes=processes)
    parts, largest = sharded.phases()["steps"], mtp_size(R1).largest()
    ours = sum(parts[part] for part in ("weights", "master_weights", "adam_moments", "gradients"))
    _, theirs = estimate_zero2_model_states_mem_needs(sharded.trained, processes, 1, False, 1.0)
    newest = 2 * memory.BUCKET
    newest += max(2 * largest, 4 * min(largest, sharded.trained // processes))
    whole = 2 * sharded.trained * (1 - 1 / processes)
    assert ours == pytest.approx(theirs + whole + newest, rel=1e-6)


def test_what_is_not_trained_has_no_states():
    size = mtp_size(R1)
    parts = plan(trained_parameters="non_routed", frozen_value_bytes=1).phases()["steps"]
    routed = size.parts["routed_experts"]
    assert parts["weights"] == routed + 2 * (size.total - routed)
    assert parts["adam_moments"] == 8 * (size.total - routed)
    adapted = plan(trained_parameters="lora", lora_rank=16, frozen_value_bytes=1).phases()["steps"]
    assert adapted["adam_moments"] - parts["adam_moments"] == 8 * (
        size.trained("lora", 16) - size.trained("non_routed")
    )


def test_more_of_anything_never_takes_less():
    base = plan(processes=8).peak()[1]
    for more in ({"depth": 4}, {"row": RowShape.full(8192), "row_tokens": 8192}, {"processes": 4}):
        assert plan(**({"processes": 8} | more)).peak()[1] > base, more
    assert plan(processes=8, compute="fp32").peak()[1] > base
    assert plan(processes=8, trained_parameters="non_routed").peak()[1] < base


def test_the_start_has_the_base_in_float32_with_experts_as_stored() -> None:
    warm, scratch = (plan(warm=warm).phases()["start"] for warm in (True, False))
    assert "base_speculator_float32" not in scratch
    assert scratch["activations"] < warm["activations"]
    in_fp8 = plan(frozen_value_bytes=1).phases()["start"]["base_speculator_float32"]
    saved = warm["base_speculator_float32"] - in_fp8
    assert saved == 3 * mtp_size(R1).parts["routed_experts"]


def test_the_chunk_of_the_loss_is_the_losses():
    assert (memory.CHUNK_LOGITS, memory.CHUNK_ROWS) == (losses.CHUNK_ELEMENTS, losses.CHUNK_ROWS)


def test_on_a_cpu_only_the_rows_that_are_looked_up_are_read():
    """The embedding is in the mapped checkpoint; the head is multiplied with as a whole."""
    size = mtp_size(R1)
    every, some = (
        plan(device="cpu", looked_up=tokens).phases()["steps"]["embedding_and_head"]
        for tokens in (None, 1000)
    )
    assert every - some == 2 * (size.vocab - 1000) * size.hidden
    assert plan(looked_up=1000).peak() == plan().peak(), "a GPU has it whole"
