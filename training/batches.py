"""Prefetches rows of tokens and hidden states while the model computes.

    with Prefetch(store, samples, rows, row_tokens, spec) as batches:
        for batch in batches: ...
        batches.waited      # seconds that the model waited for data

`store` is a FeatureStore or one process's `StreamReading`. `spec` names the states that the drafter
reads; the teacher always reads `final_norm`.

Shapes: B rows (1), T slots, H hidden, X values per token that the drafter reads.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates
from outrider.speculators.kinds.drafter import Batch
from outrider.training.packing import Row, TrainingSample

AHEAD = 2
"""Number of rows assembled or queued while the model processes a row."""


MasksOf = Callable[[TrainingSample, SequenceStates], TokenMasks | None]
"""Returns the masks of a sample's completion; None without a usable grammar."""


class States(Protocol):
    """Any source of sequences' hidden states."""

    def read(self, sequence_id: str) -> SequenceStates:
        """Returns the tokens and states of one sequence."""


def assemble_batch(
    store: States,
    samples: Sequence[TrainingSample],
    row: Row,
    row_tokens: int,
    spec: FeatureSpec,
    *,
    masks_of: MasksOf | None = None,
) -> Batch:
    """Concatenates a row's sequences, each truncated to its sample's length."""
    sequences = [(samples[index], store.read(samples[index].sequence_id)) for index in row]
    _, first = sequences[0]
    streams = {}
    for name in dict.fromkeys((FINAL_NORM, *spec.names)):  # teacher's and drafter's, no duplicates
        states_TH = first.streams[name]
        streams[name] = torch.zeros(1, row_tokens, states_TH.shape[-1], dtype=states_TH.dtype)
    token_BT = torch.zeros(1, row_tokens, dtype=torch.long)
    sequence_BT = torch.full((1, row_tokens), -1)
    position_BT = torch.zeros(1, row_tokens, dtype=torch.long)
    anchor_BT = torch.zeros(1, row_tokens, dtype=torch.bool)
    start = 0
    for number, (sample, states) in enumerate(sequences):
        span = slice(start, start + sample.length)
        token_BT[0, span] = torch.as_tensor(states.token_ids[: sample.length]).long()
        for name, row_BTH in streams.items():
            row_BTH[0, span] = states.streams[name][: sample.length]
        sequence_BT[0, span] = number
        position_BT[0, span] = torch.arange(sample.length)
        # The last anchor predicts the last token, two positions later.
        anchor_BT[0, start + sample.first_anchor : start + sample.length - 2] = True
        start += sample.length
    inputs = [streams[name] for name in spec.names]
    masks_MW, mask_BT = _row_masks(sequences, row_tokens, masks_of)
    return Batch(
        token_ids_BT=token_BT,
        inputs_BTX=inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=-1),
        sequence_BT=sequence_BT,
        position_BT=position_BT,
        anchor_BT=anchor_BT,
        hidden_BTH=streams[FINAL_NORM],
        row=row,
        masks_MW=masks_MW,
        mask_BT=mask_BT,
    )


def _row_masks(
    sequences: Sequence[tuple[TrainingSample, SequenceStates]],
    row_tokens: int,
    masks_of: MasksOf | None,
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Returns the masks of a row and each token's, as in `Batch`."""
    rows: list[Tensor] = []
    mask_BT = torch.full((1, row_tokens), -1)
    start = 0
    for sample, states in sequences:
        masks = None if masks_of is None else masks_of(sample, states)
        if masks is not None:
            first = start + states.completion_start
            end = start + sample.length
            mask_BT[0, first:end] = masks.index_N[: end - first] + sum(map(len, rows))
            rows.append(masks.masks_MW)
        start += sample.length
    return (torch.cat(rows), mask_BT) if rows else (None, None)


class Prefetch(AbstractContextManager["Prefetch"]):
    """Iterates over batches that a thread assembles two rows ahead.

    Batches are pinned if there is a GPU. Iterating raises the thread's errors.
    """

    def __init__(
        self,
        store: States,
        samples: Sequence[TrainingSample],
        rows: Iterable[Row],
        row_tokens: int,
        spec: FeatureSpec,
        *,
        masks_of: MasksOf | None = None,
    ):
        self._masks_of = masks_of
        self.waited = 0.0
        self._rows = iter(rows)
        self._store = store
        self._samples = samples
        self._row_tokens = row_tokens
        self._spec = spec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead: deque[Future[Batch]] = deque()

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(AHEAD):
            self._begin_next()
        while self._ahead:
            began = time.perf_counter()
            batch = self._ahead.popleft().result()
            self.waited += time.perf_counter() - began
            self._begin_next()
            yield batch

    def _begin_next(self) -> None:
        row = next(self._rows, None)
        if row is not None:
            self._ahead.append(self._thread.submit(self._read, row))

    def _read(self, row: Row) -> Batch:
        batch = assemble_batch(
            store=self._store,
            samples=self._samples,
            row=row,
            row_tokens=self._row_tokens,
            spec=self._spec,
            masks_of=self._masks_of,
        )
        return batch.pinned() if torch.cuda.is_available() else batch
