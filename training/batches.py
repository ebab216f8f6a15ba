"""Rows of tokens and hidden states, read ahead by a thread while the model computes.

    with Prefetch(store, samples, rows, row_tokens, spec) as batches:
        for batch in batches: ...
        batches.waited      # seconds that the model waited for data

Training reads anything whose `read(sequence_id)` returns a `SequenceStates`: data's FeatureStore,
or a process's reading of a plan (feature_source.py). `spec` names the states that the drafter
reads; the teacher reads `hidden`.

Shapes: B rows (1), T slots, H hidden, X values that the drafter reads of a token.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates, stream_of
from outrider.training.packing import Row, Sample


class States(Protocol):
    """Anything that has the states of sequences."""

    def read(self, sequence_id: str) -> SequenceStates:
        """One sequence."""


class Store(States, Protocol):
    """The part of a feature store that training reads."""

    @property
    def manifest(self) -> dict[str, Any]:
        """`["sequences"]`: one {"id", "length", "completion_start", ...} for each sequence."""

    @property
    def spec(self) -> FeatureSpec:
        """The states that the store holds."""

    def tokens(self, sequence_id: str) -> Tensor:
        """[T]: its token ids alone."""


@dataclass(frozen=True)
class Batch:
    """One row, as `Drafter.unroll` takes it (B = 1)."""

    row: Row
    token_ids_BT: Tensor
    hidden_BTH: Tensor
    """What the teacher reads: the target's states after the final norm."""
    inputs_BTX: Tensor
    """What the drafter reads; the same tensor as `hidden_BTH` where that is all it reads."""
    sequence_BT: Tensor
    """Number of the slot's sequence in the row, from 0; -1 is padding."""
    position_BT: Tensor
    anchor_BT: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        hidden_BTH = moved(self.hidden_BTH)
        shared = self.inputs_BTX is self.hidden_BTH
        return Batch(
            self.row,
            moved(self.token_ids_BT),
            hidden_BTH,
            hidden_BTH if shared else moved(self.inputs_BTX),
            moved(self.sequence_BT),
            moved(self.position_BT),
            moved(self.anchor_BT),
        )


def assemble(
    store: States, samples: Sequence[Sample], row: Row, row_tokens: int, spec: FeatureSpec
) -> Batch:
    """Reads the sequences of a row and concatenates them; longer ones are cut at their end."""
    pieces = [(samples[index], store.read(samples[index].sequence_id)) for index in row]
    token = torch.zeros(1, row_tokens, dtype=torch.long)
    streams = {name: _room(stream_of(pieces[0][1], name), row_tokens) for name in _names(spec)}
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
    return Batch(row, token, streams[FINAL_NORM], inputs_BTX, sequence, position, anchor)


def _names(spec: FeatureSpec) -> list[str]:
    """The streams of teacher and drafter, each once."""
    return list(dict.fromkeys((FINAL_NORM, *spec.names)))


def _room(states_TH: Tensor, row_tokens: int) -> Tensor:
    """Zeros [1, T, H] for the states of a row."""
    return torch.zeros(1, row_tokens, states_TH.shape[-1], dtype=states_TH.dtype)


class Texts(Protocol):
    """Anything that has the tokens of sequences."""

    def tokens(self, sequence_id: str) -> Tensor:
        """[T]: its token ids alone."""


def responses(store: Texts, samples: Iterable[Sample]) -> Iterator[Tensor]:
    """The response tokens of each sample, which are what is drafted; no states are read."""
    for sample in samples:
        yield store.tokens(sample.sequence_id)[sample.first_anchor + 1 : sample.length]


class Prefetch:
    """Iterates over batches that a thread assembles two rows ahead.

    An error in the thread is raised by the iteration.
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
        self._queue: queue.Queue[Batch | Exception | None] = queue.Queue(maxsize=2)
        self._stop = threading.Event()
        arguments = (store, samples, rows, row_tokens, spec)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="prefetch", daemon=True
        )

    def __enter__(self) -> "Prefetch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            began = time.perf_counter()
            item = self._queue.get()
            self.waited += time.perf_counter() - began
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    def _run(
        self,
        store: States,
        samples: Sequence[Sample],
        rows: Iterable[Row],
        row_tokens: int,
        spec: FeatureSpec,
    ) -> None:
        try:
            for row in rows:
                if not self._put(assemble(store, samples, row, row_tokens, spec)):
                    return
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, item: Batch | Exception | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
