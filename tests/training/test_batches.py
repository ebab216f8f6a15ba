"""Rows for the model, and reading ahead."""

import pytest
import torch

from outrider.data.features.feature_store import SequenceLength
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.speculators.unroll import valid_BT
from outrider.training.batches import Prefetch, assemble
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
    batch = assemble(MemoryStore(), SAMPLES, (0, 1), row_tokens=14, spec=SPEC)
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
