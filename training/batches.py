"""Prefetches rows of tokens and hidden states while the model computes.

    with Prefetch(store, samples, rows, row_tokens, spec) as batches:
        for batch in batches: ...
        batches.waited      # seconds that the model waited for data

Training reads from any object whose `read(sequence_id)` returns a `SequenceStates`: a FeatureStore,
or a process's `Reading` of a stream. `spec` names the states that the drafter reads; the teacher
reads `hidden`.

Shapes: B rows (1), T slots, H hidden, X values per token that the drafter reads.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates, stream_of
from outrider.speculators.kinds.drafter import Batch
from outrider.training.packing import Row, Sample

AHEAD = 2
"""Number of rows assembled or queued while the model processes a row."""


class States(Protocol):
    """Any source of sequences' hidden states."""

    def read(self, sequence_id: str) -> SequenceStates:
        """Returns the tokens and states of one sequence."""


class Store(States, Protocol):
    """The part of a feature store that training reads."""

    @property
    def manifest(self) -> dict[str, Any]:
        """`["sequences"]` has {"id", "length", "completion_start", ...} for each sequence."""

    @property
    def spec(self) -> FeatureSpec:
        """The states that the store holds."""

    def tokens(self, sequence_id: str) -> Tensor:
        """Returns the sequence's token ids, [T], without its states."""


class Reading(States, Protocol):
    """The sequences of a stream that one process reads, in order."""

    def off_policy(self, sequence_ids: Sequence[str]) -> list[bool]:
        """Returns whether each sequence is off-policy and therefore has no loss."""

    def close(self) -> None:
        """Ends a `read` that is waiting in another thread."""


class Stream(Store, Protocol):
    """Features captured during training; `read` returns those of the validation part."""

    def reading(self, sequence_ids: Sequence[str]) -> Reading:
        """Returns a `Reading` of these training sequences, in this order."""


def assemble(
    store: States, samples: Sequence[Sample], row: Row, row_tokens: int, spec: FeatureSpec
) -> Batch:
    """Concatenates a row's sequences, each truncated to its sample's length."""
    pieces = [(samples[index], store.read(samples[index].sequence_id)) for index in row]
    token = torch.zeros(1, row_tokens, dtype=torch.long)
    streams = {}
    for name in dict.fromkeys((FINAL_NORM, *spec.names)):  # teacher's and drafter's, no duplicates
        states_TH = stream_of(pieces[0][1], name)
        streams[name] = torch.zeros(1, row_tokens, states_TH.shape[-1], dtype=states_TH.dtype)
    sequence = torch.full((1, row_tokens), -1)
    position = torch.zeros(1, row_tokens, dtype=torch.long)
    anchor = torch.zeros(1, row_tokens, dtype=torch.bool)
    start = 0
    for number, (sample, features) in enumerate(pieces):
        span = slice(start, start + sample.length)
        token[0, span] = torch.as_tensor(features.token_ids[: sample.length]).long()
        for name, room_BTH in streams.items():
            room_BTH[0, span] = stream_of(features, name)[: sample.length]
        sequence[0, span] = number
        position[0, span] = torch.arange(sample.length)
        anchor[0, start + sample.first_anchor : start + sample.length - 2] = True
        start += sample.length
    inputs = [streams[name] for name in spec.names]
    inputs_BTX = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=-1)
    return Batch(token, inputs_BTX, sequence, position, anchor, streams[FINAL_NORM], row)


class Prefetch(AbstractContextManager["Prefetch"]):
    """Iterates over batches that a thread assembles two rows ahead.

    Batches are pinned if there is a GPU. Iterating raises the thread's errors.
    """

    def __init__(
        self,
        store: States,
        samples: Sequence[Sample],
        rows: Iterable[Row],
        row_tokens: int,
        spec: FeatureSpec,
    ):
        self.waited = 0.0
        self._rows = iter(rows)
        self._assemble = lambda row: assemble(
            store=store, samples=samples, row=row, row_tokens=row_tokens, spec=spec
        )
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
        batch = self._assemble(row)
        return batch.pinned() if torch.cuda.is_available() else batch
