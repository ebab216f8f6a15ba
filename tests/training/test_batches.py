"""Rows for the model, and reading ahead."""

import pytest
import torch

from outrider.data.features.feature_store import SequenceLength
from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.unroll import valid_BT
from outrider.training.batches import Prefetch, assemble_batch
from outrider.training.packing import make_samples

LENGTHS = {"a": (6, 3), "b": (5, 2), "c": (40, 4)}


class MemoryStore:
    """Sequences whose tokens count from 10, 20, 30 and whose state at token t is [t, t]."""

    def read(self, sequence_id: str) -> SequenceStates:
        length, start = LENGTHS[sequence_id]
        token_ids = torch.arange(length, dtype=torch.int32) + 10 * (1 + "abc".index(sequence_id))
        hidden = token_ids[:, None].expand(-1, 2).bfloat16()
        return SequenceStates(token_ids, start, {FINAL_NORM: hidden})


SPEC = FeatureSpec((FeatureStream(FINAL_NORM, 2),))
SAMPLES, _ = make_samples(
    [SequenceLength(name, *numbers) for name, numbers in LENGTHS.items()], row_tokens=14
)


def test_a_row_holds_its_sequences_side_by_side() -> None:
    batch = assemble_batch(MemoryStore(), SAMPLES, (0, 1), row_tokens=14, spec=SPEC)
    assert batch.token_ids_BT[0].tolist() == [10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 0, 0, 0]
    assert batch.sequence_BT[0].tolist() == [0] * 6 + [1] * 5 + [-1] * 3
    assert batch.position_BT[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 0, 0]
    # a: completion 3..5, anchors from 2 to 3, the last that predicts a token. b: completion 2..4,
    # anchors 1, 2.
    assert batch.anchor_BT[0].nonzero().squeeze(1).tolist() == [2, 3, 7, 8]
    assert not batch.anchor_BT[~valid_BT(batch.sequence_BT, 0)].any()
    assert batch.hidden_BTH[0, 7].tolist() == [21, 21]
    assert batch.inputs_BTX is batch.hidden_BTH
    moved = batch.to(torch.device("cpu"))
    assert moved.inputs_BTX is moved.hidden_BTH


def test_masks_are_at_their_tokens_and_end_with_the_sample() -> None:
    """a has two masks for its tokens 3 to 5, b none, and c, of 40 tokens, is cut at 14."""
    masks = {
        "a": TokenMasks(torch.tensor([[-1], [5]], dtype=torch.int32), torch.tensor([0, 1, 1])),
        "c": TokenMasks(torch.tensor([[-1], [7]], dtype=torch.int32), torch.ones(36).long()),
    }

    def assembled(row: tuple[int, ...], row_tokens: int) -> Batch:
        return assemble_batch(
            store=MemoryStore(),
            samples=SAMPLES,
            row=row,
            row_tokens=row_tokens,
            spec=SPEC,
            masks_of=lambda sample, states: masks.get(sample.sequence_id),
        )

    batch = assembled((1, 0, 2), 26).to(torch.device("cpu"))
    assert batch.masks_MW is not None and batch.mask_BT is not None
    assert batch.masks_MW[:, 0].tolist() == [-1, 5, -1, 7]
    of_a = [-1, -1, -1, 0, 1, 1]
    of_c = [-1] * 4 + [3] * 10
    assert batch.mask_BT[0].tolist() == [-1] * 5 + of_a + of_c + [-1]
    assert assembled((1,), 14).masks_MW is None


def test_prefetch_keeps_the_order_and_raises_what_the_thread_met() -> None:
    with Prefetch(
        store=MemoryStore(), samples=SAMPLES, rows=[(0,), (1,), (2,)], row_tokens=14, spec=SPEC
    ) as batches:
        assert [batch.row for batch in batches] == [(0,), (1,), (2,)]
    broken, _ = make_samples([SequenceLength("z", 9, 2)], row_tokens=14)
    with (
        Prefetch(
            store=MemoryStore(), samples=broken, rows=[(0,)], row_tokens=14, spec=SPEC
        ) as batches,
        pytest.raises(KeyError, match="z"),
    ):
        next(iter(batches))
