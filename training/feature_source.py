"""Where training reads hidden states: a store that holds all of them, or a stream in plan order.

    source = source_of(store, masked)
    number = source.begin(plan.places(first_step, left_out))     # in the first process
    reading = source.reading(number, plan.mine(...))             # in every process
    states = reading.read(sequence_id)                           # the next of its places
    off = reading.off_policy(plan.places_of(step))

Both give the same bits for the same plan. A stored source has every sequence at any time. A
streamed one captures while training runs and keeps a sequence in memory only until it has been
read (data/streaming/), so a process reads exactly its places of the plan, in their order. It is
the object that `feature_store` in the specification opens, if that has a method `begin`.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from outrider.speculators.features import FeatureSpec, SequenceStates
from outrider.training.batches import Store
from outrider.training.plan import Place


class Reading(Protocol):
    """One process's states of a plan, in its order."""

    def read(self, sequence_id: str) -> SequenceStates:
        """The states at this process's next place, which is that of `sequence_id`."""

    def off_policy(self, places: Sequence[Place]) -> list[bool]:
        """Whether the sequence at each place is off-policy and therefore gets no loss.

        Waits until all of them have been judged, also those that other processes read.
        """

    def marks(self) -> dict[str, float]:
        """State of the stream, for the metrics of a step; nothing for a store."""

    def close(self) -> None:
        """Ends a `read` that waits in another thread."""


@runtime_checkable
class FeatureSource(Protocol):
    """A store whose training part is read by place in the plan."""

    @property
    def manifest(self) -> dict[str, Any]:
        """`["sequences"]`: one {"id", "length", "completion_start", ...} for each sequence."""

    @property
    def spec(self) -> FeatureSpec:
        """The states of each sequence."""

    def read(self, sequence_id: str) -> SequenceStates:
        """One sequence of the validation part."""

    def tokens(self, sequence_id: str) -> Tensor:
        """[T]: the token ids of any sequence."""

    def begin(self, places: Sequence[Place]) -> int:
        """Announces what will be read, in order, and returns the number of the announcement.

        Called in one process. It ends what was announced before.
        """

    def reading(self, number: int, mine: Sequence[Place]) -> Reading:
        """Reads a process's places of announcement `number`."""


class StoredSource:
    """A feature store as a source. `masked`: its off-policy sequences that stay in the rows."""

    def __init__(self, store: Store, masked: Collection[str] = ()):
        self.store, self.masked = store, frozenset(masked)

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

    def off_policy(self, places: Sequence[Place]) -> list[bool]:
        return [place.sequence_id in self.masked for place in places]

    def begin(self, places: Sequence[Place]) -> int:
        return 0

    def reading(self, number: int, mine: Sequence[Place]) -> Reading:
        return self

    def marks(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return


def source_of(store: Store | FeatureSource, masked: Collection[str] = ()) -> FeatureSource:
    """The store itself if it streams, else the store as a source."""
    return store if isinstance(store, FeatureSource) else StoredSource(store, masked)
