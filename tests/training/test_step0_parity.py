"""Step-0 parity: no false stop at any size of the validation part, and every fault is found."""

import types
from pathlib import Path

import pytest
import torch

from outrider.data.features.feature_store import SequenceLength
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.parity import ParityConfig, parity_failure
from outrider.training.batches import assemble_batch
from outrider.training.distributed.accelerator import ChainUnroll
from outrider.training.packing import make_samples
from outrider.training.step0_parity import StepZero
from tests.shipped_traffic import general_rows
from tools.nano_r1.states import ComputedStates

DEPTH = 5


@pytest.fixture(scope="module")
def small(nano_r1: Path) -> tuple[ChainUnroll, list[Batch]]:
    """The base, and three sequences: the smallest validation part."""
    rows = general_rows(every=50)[:3]
    batches = []
    states = ComputedStates(nano_r1, rows, [])
    spec = FeatureSpec((FeatureStream(FINAL_NORM, 192),))
    for row in rows:
        length = len(row["token_ids"])
        sequence = SequenceLength(row["sequence_id"], length, row["completion_start"])
        samples, _ = make_samples([sequence], length)
        batches.append(
            assemble_batch(store=states, samples=samples, row=(0,), row_tokens=length, spec=spec)
        )
    return ChainUnroll(load_mtp(nano_r1), load_target_ends(nano_r1), DEPTH).eval(), batches


def healthy(target: Path) -> ChainUnroll:
    """Weights in bf16, the routing bias kept, as `prepare_model` leaves them."""
    ends = load_target_ends(target, torch.bfloat16)
    return ChainUnroll(load_mtp(target, torch.bfloat16), ends, DEPTH).eval()


def pre_norm(target: Path) -> ChainUnroll:
    """The state is fed back before its norm."""
    unroll = healthy(target)

    def finish(self, x_NH, attended_ANV):
        state_NH = self.block.finish_layer(x_NH[None], attended_ANV[None])[0]
        return state_NH, self.norm(state_NH)

    unroll.speculator.finish_layer = types.MethodType(finish, unroll.speculator)
    return unroll


def positions_stay(target: Path) -> ChainUnroll:
    """The drafts of a chain are at their anchor's position."""
    unroll = healthy(target)
    speculator = unroll.speculator
    project = unroll.speculator.project
    inputs = []

    def first_state(self, inputs_NX):
        inputs.clear()
        return inputs_NX

    def shifted(self, x_NH, position_N):
        inputs.append(0)
        return project(x_NH, position_N - (len(inputs) - 1))

    speculator.first_state = types.MethodType(first_state, speculator)
    speculator.project = types.MethodType(shifted, speculator)
    return unroll


def not_loaded(target: Path) -> ChainUnroll:
    unroll = healthy(target)
    unroll.speculator.eh_proj.weight.data.fill_(float("nan"))
    return unroll


FAULTS = (pre_norm, positions_stay, not_loaded)


@torch.no_grad()
def why(small: tuple[ChainUnroll, list[Batch]], prepared: ChainUnroll) -> str | None:
    """The complaint about a speculator as prepared, over the sequences."""
    of_base, sequences = small
    check = StepZero(of_base, ParityConfig())
    for batch in sequences:
        check.add(batch, prepared.unroll_batch(batch))
    return parity_failure(check.sums_K4.tolist(), ParityConfig())


def test_the_prepared_speculator_passes_on_three_sequences(nano_r1: Path, small) -> None:
    assert why(small, healthy(nano_r1)) is None


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_every_fault_is_found_on_three_sequences(nano_r1: Path, small, fault) -> None:
    complaint_of_fault = why(small, fault(nano_r1))
    assert complaint_of_fault is not None and "Usual causes" in complaint_of_fault
