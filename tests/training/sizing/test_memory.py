"""Predicted memory against what torch allocates, and the rules that the prediction rests on."""

import dataclasses

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from outrider.pipeline.plan.training_cost import ASSUMED_GPU, FP8_BYTES, USABLE
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.kinds.eagle3.size import EagleSize
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.kinds.protocol import RowShape
from outrider.speculators.layers.deepseek_layer import DeepseekArch
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
    monkeypatch, settings, tokens, depth, heavy, recompute
):
    monkeypatch.setattr(memory, "KEPT_AT_MOST", 0 if recompute else 10**12)
    # The loss is not run here, so its chunk does not count.
    monkeypatch.setitem(memory.CHUNK_LOGITS, "cpu", 0)
    monkeypatch.setattr(memory, "CHUNK_ROWS", 0)
    row = RowShape.of_sequences([(tokens, tokens - 2)])
    parts = MemoryPlan(mtp_size(settings), row, tokens, depth, device="cpu").phases()["backward"]
    dynamic = {part: parts.get(part, 0) for part in ("activations", "drafted_states", "gradients")}
    assert max(dynamic, key=dynamic.__getitem__) == heavy
    hidden = settings["hidden_size"]
    speculator = mtp_layer(settings)
    speculator.recompute = recompute
    measured = peak_of_backward(speculator, VOCAB, hidden, hidden, tokens, depth)
    assert sum(dynamic.values()) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("layer_type", ["llama", "mla"])
@pytest.mark.parametrize(("hidden", "tokens"), [(64, 600), (512, 40)])
def test_the_peak_of_a_head_is_predicted_within_a_tenth(monkeypatch, layer_type, hidden, tokens):
    # The loss is not run here: neither its chunk nor the head's rows count.
    monkeypatch.setitem(memory.CHUNK_LOGITS, "cpu", 0)
    monkeypatch.setattr(memory, "CHUNK_ROWS", 0)
    monkeypatch.setattr(EagleSize, "own_head", 0)
    target, depth = SMALL | {"hidden_size": hidden, "num_hidden_layers": 8}, 3
    kind = trainable_kind("eagle3")
    config = kind.config(target, HeadConfig(layer_type=layer_type), None)
    size = kind.size(config, target)
    row = RowShape.of_sequences([(tokens, tokens - 2)])
    parts = MemoryPlan(size, row, tokens, depth, device="cpu").phases()["backward"]
    torch.manual_seed(0)
    head = EagleHead(size.shape, None).bfloat16()
    measured = peak_of_backward(head, VOCAB, hidden, 3 * hidden, tokens, depth)
    predicted = sum(parts.get(p, 0) for p in ("activations", "drafted_states", "gradients"))
    assert predicted == pytest.approx(measured, rel=0.1)


def test_a_start_from_scratch_has_no_base_in_float32():
    warm, scratch = (plan(warm=warm).phases()["start"] for warm in (True, False))
    assert "base_speculator_float32" in warm and "base_speculator_float32" not in scratch
    assert scratch["activations"] < warm["activations"]


def plan(**changes) -> MemoryPlan:
    return dataclasses.replace(MemoryPlan(mtp_size(R1), RowShape.full(4096), 4096, 3), **changes)


def test_r1_fits_with_rows_of_32768() -> None:
    """All trained, depth 3, ZeRO-2 on 8 GPUs of 141 GB; every phase, and the host of the node."""
    long = {"row": RowShape.full(32768), "row_tokens": 32768, "frozen_value_bytes": FP8_BYTES}
    r1 = plan(**long, zero_stage=2, processes=8, rows_each=4)
    assert r1.recompute
    assert r1.peak()[1] < USABLE * ASSUMED_GPU
    assert r1.host_bytes(8) < 256e9
    assert not plan(row_tokens=1024).recompute, "short rows are not computed twice"


def test_a_base_in_fp8_keeps_its_experts_in_fp8_at_the_start() -> None:
    in_bf16, in_fp8 = (
        plan(frozen_value_bytes=value).phases()["start"]["base_speculator_float32"]
        for value in (2, 1)
    )
    assert in_bf16 - in_fp8 == 3 * mtp_size(R1).routed_experts


def test_bytes_of_a_weight_are_deepspeeds():
    size, one = mtp_size(R1), plan().phases()["update"]
    assert one["weights"] == 2 * size.total and one["master_weights"] == 4 * size.total
    assert (
        one["adam_moments"] == 8 * size.total and one["embedding_and_head"] == 2 * 2 * 129280 * 7168
    )
    eight = plan(zero_stage=3, processes=8).phases()["update"]
    for part in ("weights", "master_weights", "adam_moments"):
        assert eight[part] == pytest.approx(one[part] / 8)
    assert plan(zero_stage=1, processes=8).phases()["update"]["weights"] == one["weights"]


def test_gradients_are_summed_in_float32():
    """Stage 1 keeps the whole sum all the time, stage 2 its share from the first row on."""
    trained = plan().trained
    for phase in plan(processes=8).phases().values():
        assert phase["summed_gradients"] == 4 * trained
    one, eight = (
        plan(zero_stage=2, processes=n, rows_each=2).phases()["backward"]["gradients"]
        for n in (1, 8)
    )
    # One process copies the largest tensor to float32 to reduce it. Of eight each copies its part,
    # which takes less than the gradient of that tensor that a depth adds to those before.
    largest = mtp_size(R1).largest_trained("all")
    assert one - eight == pytest.approx(4 * (trained + largest) - 4 * trained / 8 - 2 * largest)


def test_what_is_not_trained_has_no_states():
    size = mtp_size(R1)
    parts = plan(trained_parameters="non_routed", frozen_value_bytes=1).phases()["update"]
    assert parts["weights"] == size.routed_experts + 2 * (size.total - size.routed_experts)
    assert parts["adam_moments"] == 8 * (size.total - size.routed_experts)
    adapted = plan(trained_parameters="lora", lora_rank=16, frozen_value_bytes=1).phases()["update"]
    assert adapted["adam_moments"] - parts["adam_moments"] == 8 * (
        size.trained("lora", 16) - size.trained("non_routed")
    )


def test_more_of_anything_never_takes_less():
    base = plan(processes=8).peak()[1]
    for more in (
        {"depth": 4},
        {"row": RowShape.full(8192), "row_tokens": 8192},
        {"processes": 4},
    ):
        assert plan(**({"processes": 8} | more)).peak()[1] > base, more
    whole = plan(processes=8, compute="fp32").peak()[1]
    assert plan(processes=8, compute="fp32", rows_each=4).peak()[1] > whole > base
    assert plan(processes=8, trained_parameters="non_routed").peak()[1] < base


def test_the_chunk_of_the_loss_is_the_losses():
    assert (memory.CHUNK_LOGITS, memory.CHUNK_ROWS) == (losses.CHUNK_ELEMENTS, losses.CHUNK_ROWS)


def test_on_a_cpu_only_the_rows_that_are_looked_up_are_read():
    """The embedding is in the mapped checkpoint; the head is multiplied with as a whole."""
    size = mtp_size(R1)
    every, some = (
        plan(device="cpu", looked_up=tokens).phases()["update"]["embedding_and_head"]
        for tokens in (None, 1000)
    )
    assert every - some == 2 * (size.vocab - 1000) * size.hidden
    assert plan(device="cpu", looked_up=size.vocab + 1).peak() == plan(device="cpu").peak()
    assert plan(looked_up=1000).peak() == plan().peak(), "a GPU has it whole"
