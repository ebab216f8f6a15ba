"""Drafts are recorded on model runner V2, whose batches keep rejected drafts.

The runner itself needs Triton; test_v2_runner.py runs it in Triton's interpreter. Here V2's own
batch and sampling meet the recorder, with a drafter whose states are drawn. V1's drafters, parallel
ones too, are recorded in tests/serving/test_other_speculators.py.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

from outrider.serving.vllm_hooks.draft_recorder import DraftExtension, recorder_of

DEPTHS, HIDDEN, VOCABULARY = 3, 4, 11
LENGTHS = [5, 4, 2]
STARTS = [0, 20, 7]
REJECTED = [0, 2, 0]
SAMPLED = [1, 2, 0]
SLOTS = [6, 1, 3]


class DrawnSpeculator(MTPSpeculator):
    """V2's speculator with drawn states in place of a model's."""

    def __init__(self) -> None:
        self.head_VH = torch.randn(VOCABULARY, HIDDEN)
        self.model = SimpleNamespace(compute_logits=lambda h_BH: h_BH @ self.head_VH.T)
        self.use_local_argmax_reduction = False
        self.acceptance_estimator = None
        self.draft_tokens = torch.full((8, DEPTHS), 7)
        self.states = [torch.randn(len(LENGTHS), HIDDEN) for _ in range(DEPTHS)]
        self.in_a_graph = False

    def propose(self, input_batch: InputBatch, *args: Any, **kwargs: Any) -> torch.Tensor:
        depths = kwargs.get("num_speculative_tokens") or DEPTHS
        for depth in range(0 if self.in_a_graph else depths):
            nothing: Any = None
            drafts_B = self.sample_draft(self.states[depth], *[nothing] * 6)
            self.draft_tokens[: input_batch.num_reqs, depth] = drafts_B
        # As the engine does: the batch's buffers are used again.
        input_batch.positions.zero_()
        return self.draft_tokens[: input_batch.num_reqs]


DrawnSpeculator.propose.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    MTPSpeculator.propose
)


@pytest.fixture
def batch() -> InputBatch:
    """Three requests: decoding, decoding with two rejected drafts, within its prompt."""
    buffers = InputBuffers(8, 64, torch.device("cpu"))
    batch = InputBatch.make_dummy(len(LENGTHS), sum(LENGTHS), buffers)
    batch.req_ids = ["first-0123abcd", "second-0123abcd", "third-0123abcd"]
    batch.query_start_loc[:] = torch.tensor([0, *np.cumsum(LENGTHS)])
    positions = [np.arange(start, start + n) for start, n in zip(STARTS, LENGTHS, strict=True)]
    batch.positions.copy_(torch.from_numpy(np.concatenate(positions)))
    batch.idx_mapping = torch.tensor(SLOTS)
    return batch


def propose(speculator: Any, batch: InputBatch, **more: Any) -> torch.Tensor:
    """As the runner calls it: the first arguments by position."""
    last_sampled = torch.arange(100, 108)[:, None]
    next_prefill = torch.arange(200, 208, dtype=torch.int32)[None]
    counts = torch.tensor(SAMPLED), torch.tensor(REJECTED)
    drafts: torch.Tensor = speculator.propose(
        batch, {}, {}, torch.zeros(1), None, *counts, last_sampled, next_prefill, None, None, **more
    )
    return drafts


def test_each_request_has_its_anchor_next_token_drafts_and_logprobs(batch: InputBatch) -> None:
    speculator = DrawnSpeculator()
    extension = DraftExtension()
    extension.model_runner = SimpleNamespace(speculator=speculator)
    extension.drafts_start()
    drafts = propose(speculator, batch).tolist()
    records = extension.drafts_stop()
    assert records is not None
    # The anchor is the last token that the target has read: rejected drafts follow it.
    assert [
        (record["request_id"], record["anchor"], record["next_token"]) for record in records
    ] == [("first", 4, 106), ("second", 21, 101), ("third", 8, 203)]
    logits_BDV = torch.stack(speculator.states, dim=1) @ speculator.head_VH.T
    logprob_BD, draft_BD = logits_BDV.log_softmax(-1).max(-1)
    assert [record["drafts"] for record in records] == drafts == draft_BD.tolist()
    torch.testing.assert_close(
        torch.tensor([record["logprobs"] for record in records]), logprob_BD, atol=1e-5, rtol=0
    )


def test_drafts_of_a_cuda_graph_are_an_error(batch: InputBatch) -> None:
    speculator = DrawnSpeculator()
    speculator.in_a_graph = True
    assert recorder_of(SimpleNamespace(speculator=speculator)) is not None
    with pytest.raises(RuntimeError, match=r"0 of 9 drafts .*mode: eager"):
        propose(speculator, batch)
