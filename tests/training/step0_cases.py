"""Nano R1's speculator as prepared for training, healthy and with each fault."""

import dataclasses
import gzip
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import DeepseekV3ForCausalLM

from outrider.data.exchange import Exchange, Place, Record
from outrider.data.formats.openai_pairs import parse
from outrider.data.tokenize.tokens import SequenceBuilder
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.config import ParityConfig
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.training.batches import Batch
from outrider.training.distributed.accelerator import ChainUnroll
from outrider.training.packing import make_samples
from outrider.training.step0_parity import StepZero

NANO_R1 = Path(__file__).parents[2] / "recipes" / "nano_r1"
DEPTH = 5
Prepared = tuple[ChainUnroll, Callable[[Batch], Batch]]
"""A speculator as prepared for training, and what it is given for a batch."""


@torch.no_grad()
def batches(target: Path, workload: str, count: int, every: int = 7) -> Iterator[Batch]:
    """One sequence each, with states computed by transformers in bf16."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = DeepseekV3ForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    builder = SequenceBuilder(target)
    path = NANO_R1 / "traffic" / f"{workload}.jsonl.gz"
    with gzip.open(path) as log:
        rows = [line for number, line in enumerate(log) if number % every == 0]
    for number, row in enumerate(rows[:count]):
        [exchange] = parse(Record(Place(path.name, number), row))
        assert isinstance(exchange, Exchange)
        sequence = builder.build(exchange)
        length = len(sequence.token_ids)
        [sample], _ = make_samples([("", length, sequence.completion_start)], length)
        token_BT = torch.tensor(sequence.token_ids)[None]
        hidden_BTH = model.model(token_BT).last_hidden_state
        anchor_BT = torch.zeros(1, length, dtype=torch.bool)
        anchor_BT[0, sample.first_anchor : length - 2] = True
        position_BT = torch.arange(length)[None]
        sequence_BT = torch.zeros_like(position_BT)
        yield Batch((0,), token_BT, hidden_BTH, hidden_BTH, sequence_BT, position_BT, anchor_BT)


def base(target: Path) -> ChainUnroll:
    return ChainUnroll(load_mtp(target), load_target_ends(target), DEPTH).eval()


def healthy(target: Path) -> Prepared:
    """Weights in bf16, buffers kept, as `prepare_model` leaves them."""
    speculator = load_mtp(target)
    buffers = {name: buffer.clone() for name, buffer in speculator.named_buffers()}
    speculator = speculator.to(torch.bfloat16)
    for name, buffer in speculator.named_buffers():
        buffer.data = buffers[name]
    ends = load_target_ends(target, torch.bfloat16)
    return ChainUnroll(speculator, ends, DEPTH).eval(), lambda batch: batch


def pre_norm(target: Path) -> Prepared:
    """The state is fed back before its norm."""
    unroll, given = healthy(target)

    def finish(self, x_NH, attended_ANV):
        state_NH = self.block.finish(x_NH[None], attended_ANV[None])[0]
        return state_NH, self.norm(state_NH)

    unroll.speculator.finish = types.MethodType(finish, unroll.speculator)
    return unroll, given


def positions_stay(target: Path) -> Prepared:
    """The drafts of a chain are at their anchor's position."""
    unroll, given = healthy(target)
    speculator, project, inputs = unroll.speculator, unroll.speculator.project, []

    def first_state(self, inputs_NX):
        inputs.clear()
        return inputs_NX

    def shifted(self, x_NH, position_N):
        inputs.append(0)
        return project(x_NH, position_N - (len(inputs) - 1))

    speculator.first_state = types.MethodType(first_state, speculator)
    speculator.project = types.MethodType(shifted, speculator)
    return unroll, given


def tokens_shifted(target: Path) -> Prepared:
    unroll, _ = healthy(target)
    return unroll, lambda batch: dataclasses.replace(
        batch, token_ids_BT=batch.token_ids_BT.roll(1, 1)
    )


def not_loaded(target: Path) -> Prepared:
    unroll, given = healthy(target)
    unroll.speculator.eh_proj.weight.data.fill_(float("nan"))
    return unroll, given


FAULTS = (pre_norm, positions_stay, tokens_shifted, not_loaded)


@torch.no_grad()
def compared(base: ChainUnroll, prepared: Prepared, batch: Batch) -> np.ndarray:
    """[K, 4] sums of `StepZero` over one sequence."""
    unroll, given = prepared
    check = StepZero(base, ParityConfig())
    check.add(batch, unroll.drafted(given(batch)))
    return check.sums_K4.numpy()
