"""Where training reads hidden states: a store that holds all of them, or a stream.

    source = source_of(store)
    reading = source.reading(sequence_ids)              # in every process: what it reads, in order
    states = reading.read(sequence_id)                  # the next of its sequences
    off = reading.off_policy(sequence_ids)

A stored source has every sequence at any time. A streamed one (data/streamed.py) captures
while training runs, in the order in which a process reads. It is the object that `feature_store` in
the specification opens, if that has a method `reading`.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from outrider.speculators.features import FeatureSpec, SequenceStates
from outrider.training.batches import Store


class Reading(Protocol):
    """The sequences that one process reads, in order."""

    def read(self, sequence_id: str) -> SequenceStates:
        """The states of the next sequence, which is `sequence_id`."""

    def off_policy(self, sequence_ids: Sequence[str]) -> list[bool]:
        """Which of these sequences are off-policy and therefore get no loss."""

    def close(self) -> None:
        """Ends a `read` that waits in another thread."""


@runtime_checkable
class FeatureSource(Store, Protocol):
    """A store whose training part is read in a given order; `read` is for the validation part."""

    def reading(self, sequence_ids: Sequence[str]) -> Reading:
        """Reads these sequences of the training part, in this order."""


class StoredSource:
    """A feature store as a source. Its off-policy sequences were left out of the parts."""

    def __init__(self, store: Store):
        self.store = store

    @property
    def manifest(self) -> dict[str, Any]:
        return self.store.manifest

    @property
    def spec(self) -> FeatureSpec:
        return self.store.spec

    def read(self, sequence_id: str) -> SequenceStates:
        return self.store.read(sequence_id)

    def tokens(self, sequence_id: str) -> Tensor:
        return self.store.tokens(sequence_id)

    def reading(self, sequence_ids: Sequence[str]) -> Reading:
        return self

    def off_policy(self, sequence_ids: Sequence[str]) -> list[bool]:
        return [False] * len(sequence_ids)

    def close(self) -> None:
        return


def source_of(store: Store | FeatureSource) -> FeatureSource:
    """The store itself if it streams, else the store as a source."""
    return store if isinstance(store, FeatureSource) else StoredSource(store)
