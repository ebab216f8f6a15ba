"""Named hidden states of the target, and which of them a drafter reads.

    spec = FeatureSpec((FeatureStream(FINAL_NORM, 7168),))
    spec.inputs(store.read(sequence_id))      # [T, X]: the streams of one sequence side by side

A stream is one state of the target at every position. `final_norm` is the state after the last
norm, which the language-model head reads. Every other stream is the residual stream before a
layer, named `layer_{index}`. The teacher always reads `final_norm`. A drafter reads what its spec
lists: an MTP layer reads `final_norm` too, an EAGLE-3 head reads three auxiliary layers.

Shapes: T tokens, H width of a stream, X sum of the widths. No torch is imported here.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from torch import Tensor

FINAL_NORM = "final_norm"
"""The state after the target's final norm."""


class SequenceStates(Protocol):
    """The stored states of one sequence, as a feature store reads them."""

    @property
    def token_ids(self) -> "Tensor":
        """[T]"""

    @property
    def hidden(self) -> "Tensor":
        """[T, H] of the stream `final_norm`"""

    @property
    def completion_start(self) -> int:
        """Index of the first token that the target produced"""


@dataclasses.dataclass(frozen=True)
class FeatureStream:
    """One named state of the target and its width."""

    name: str
    width: int


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The streams that a drafter reads, in the order in which it concatenates them."""

    streams: tuple[FeatureStream, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streams in order."""
        return tuple(stream.name for stream in self.streams)

    @property
    def width(self) -> int:
        """X: values of one token over all streams."""
        return sum(stream.width for stream in self.streams)

    def stored(self, hidden_size: int) -> "FeatureSpec":
        """What a feature store holds for this drafter: the teacher's stream, then the others."""
        others = tuple(stream for stream in self.streams if stream.name != FINAL_NORM)
        return FeatureSpec((FeatureStream(FINAL_NORM, hidden_size), *others))

    @classmethod
    def union(cls, specs: "Iterable[FeatureSpec]") -> "FeatureSpec":
        """Every stream of the specs once, in the order in which they first appear."""
        streams = itertools.chain.from_iterable(spec.streams for spec in specs)
        return cls(tuple(dict.fromkeys(streams)))

    def inputs(self, states: SequenceStates) -> "Tensor":
        """The drafter's inputs [T, X]; the stored tensor itself where there is one stream."""
        found = [stream_of(states, name) for name in self.names]
        if len(found) == 1:
            return found[0]
        import torch

        return torch.cat(found, dim=-1)

    def as_list(self) -> list[dict[str, Any]]:
        """The form in the manifest of a feature store."""
        return [dataclasses.asdict(stream) for stream in self.streams]

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> "FeatureSpec":
        """The inverse of `as_list`."""
        return cls(tuple(FeatureStream(row["name"], row["width"]) for row in rows))

    def require(self, held: "FeatureSpec", where: object) -> None:
        """Raises an `OutriderError` where `held`, the states at `where`, lacks a stream."""
        missing = [stream for stream in self.streams if stream not in held.streams]
        if missing:
            wanted, found = (
                ", ".join(f"{stream.name} ({stream.width} values)" for stream in streams)
                for streams in (missing, held.streams)
            )
            raise OutriderError(
                f"{where}: holds the target's states {found}, but the speculator reads {wanted};"
                " run the capture stage again with this speculator.kind"
            )


def stream_of(states: SequenceStates, name: str) -> "Tensor":
    """One stream [T, H] of a sequence. All but `final_norm` are in `states.auxiliary`."""
    if name == FINAL_NORM:
        return states.hidden
    auxiliary: Mapping[str, Tensor] = getattr(states, "auxiliary", {})
    if name not in auxiliary:
        raise OutriderError(f"the stored states have no stream {name}; capture them again")
    return auxiliary[name]
