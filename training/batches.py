"""Rows of tokens and hidden states, read ahead by a thread while the model computes.

    with Prefetch(store, samples, rows, row_tokens) as batches:
        for batch in batches: ...
        batches.waited      # seconds that the model waited for data

Training reads any store that has `read(sequence_id)` with `token_ids`, `hidden` and `completion_start` (data's FeatureStore).
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider.training.packing import Row, Sample


class Store(Protocol):
    """What training needs of a feature store."""

    manifest: dict[str, Any]
    """`manifest["sequences"]`: one {"id", "length", "completion_start", ...} for each sequence."""

    def read(self, sequence_id: str) -> Any:
        """An object with token_ids [T], hidden [T, H] and completion_start."""


@dataclass(frozen=True)
class Batch:
    """One row, as `speculators.unroll` takes it (B = 1). `sequence_BT` counts the row's sequences from 0; -1 is padding."""

    row: Row
    token_ids_BT: Tensor
    hidden_BTH: Tensor
    sequence_BT: Tensor
    position_BT: Tensor
    anchor_BT: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        tensors = (
            self.token_ids_BT,
            self.hidden_BTH,
            self.sequence_BT,
            self.position_BT,
            self.anchor_BT,
        )
        return Batch(self.row, *(tensor.to(device, non_blocking=True) for tensor in tensors))


def assemble(store: Store, samples: Sequence[Sample], row: Row, row_tokens: int) -> Batch:
    """Reads the sequences of a row and lays them side by side; longer ones are cut at their end."""
    pieces = [(samples[index], store.read(samples[index].sequence_id)) for index in row]
    token = torch.zeros(1, row_tokens, dtype=torch.long)
    hidden = torch.zeros(
        1, row_tokens, pieces[0][1].hidden.shape[-1], dtype=pieces[0][1].hidden.dtype
    )
    sequence = torch.full((1, row_tokens), -1)
    position = torch.zeros(1, row_tokens, dtype=torch.long)
    anchor = torch.zeros(1, row_tokens, dtype=torch.bool)
    start = 0
    for number, (sample, features) in enumerate(pieces):
        span = slice(start, start + sample.length)
        token[0, span] = torch.as_tensor(features.token_ids[: sample.length]).long()
        hidden[0, span] = features.hidden[: sample.length]
        sequence[0, span] = number
        position[0, span] = torch.arange(sample.length)
        anchor[0, start + sample.first_anchor : start + sample.length - 2] = True
        start += sample.length
    return Batch(row, token, hidden, sequence, position, anchor)


class Prefetch:
    """Iterates over batches that a thread assembles two rows ahead; an error there is raised here."""

    def __init__(
        self, store: Store, samples: Sequence[Sample], rows: Iterable[Row], row_tokens: int
    ):
        self.waited = 0.0
        self._queue: queue.Queue = queue.Queue(maxsize=2)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(store, samples, rows, row_tokens), name="prefetch", daemon=True
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
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(
        self, store: Store, samples: Sequence[Sample], rows: Iterable[Row], row_tokens: int
    ) -> None:
        try:
            for row in rows:
                if not self._put(assemble(store, samples, row, row_tokens)):
                    return
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, item: object) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
