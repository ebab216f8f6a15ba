"""Named hidden states of the target, and the ones a drafter reads.

    spec = FeatureSpec((FeatureStream(FINAL_NORM, 7168),))
    spec.inputs(store.read(sequence_id))      # [T, X]: the concatenated streams of one sequence

A stream is one state of the target at every position. `final_norm` is the state after the last
norm, which the language-model head reads. Every other stream is the residual stream before a
layer, named `layer_{index}`: `layer_1` is the output of the first layer, and `layer_{L}` of a
target with L layers is the state before the final norm. The teacher always reads `final_norm`. A
drafter reads what its spec lists: an MTP layer also reads `final_norm`, and an EAGLE-3 head reads
three auxiliary layers.

Shapes: T tokens, H width of a stream, X sum of the widths. This module does not import torch.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from torch import Tensor

FINAL_NORM = "final_norm"
"""The state after the target's final norm."""

LAYER = "layer_"
"""Name prefix of all other streams, before the layer's index."""


def layer_name(index: int) -> str:
    """Name of the residual stream before layer `index`."""
    return f"{LAYER}{index}"


def layer_index(name: str) -> int:
    """Parses the index of `layer_{index}`; raises an `OutriderError` for other names."""
    index = name.removeprefix(LAYER)
    if not (name.startswith(LAYER) and index.isascii() and index.isdigit()):
        raise OutriderError(
            f"stream {name!r}: not a state of the target; valid names are {FINAL_NORM}, {LAYER}1,"
            f" {LAYER}2 and so on"
        )
    return int(index)


class SequenceStates(Protocol):
    """One sequence's states as read from a feature store."""

    @property
    def token_ids(self) -> "Tensor":
        """[T]"""

    @property
    def hidden(self) -> "Tensor":
        """[T, H] of the stream `final_norm`"""

    @property
    def auxiliary(self) -> "Mapping[str, Tensor]":
        """The streams other than `final_norm`, by name"""

    @property
    def completion_start(self) -> int:
        """Index of the first token that the target generated"""


@dataclasses.dataclass(frozen=True)
class FeatureStream:
    """One named state of the target and its width."""

    name: str
    width: int


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The streams that a drafter reads, in concatenation order."""

    streams: tuple[FeatureStream, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streams in order."""
        return tuple(stream.name for stream in self.streams)

    @property
    def width(self) -> int:
        """X: number of values per token over all streams."""
        return sum(stream.width for stream in self.streams)

    @property
    def auxiliary(self) -> tuple[FeatureStream, ...]:
        """The streams other than `final_norm`, without duplicates, ordered by layer."""
        others = {stream for stream in self.streams if stream.name != FINAL_NORM}
        return tuple(sorted(others, key=lambda stream: layer_index(stream.name)))

    def stored(self, hidden_size: int) -> "FeatureSpec":
        """The streams that a feature store holds: the teacher's, then the others."""
        return FeatureSpec((FeatureStream(FINAL_NORM, hidden_size), *self.auxiliary))

    @classmethod
    def union(cls, specs: "Iterable[FeatureSpec]") -> "FeatureSpec":
        """The streams of several drafters without duplicates, for one shared capture."""
        return cls(tuple(dict.fromkeys(stream for spec in specs for stream in spec.streams)))

    def inputs(self, states: SequenceStates) -> "Tensor":
        """The drafter's inputs [T, X]; a single stream is not copied."""
        found = [stream_of(states, name) for name in self.names]
        if len(found) == 1:
            return found[0]
        import torch

        return torch.cat(found, dim=-1)

    def as_list(self) -> list[dict[str, Any]]:
        """The spec as stored in a feature store's manifest."""
        return [dataclasses.asdict(stream) for stream in self.streams]

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> "FeatureSpec":
        """The inverse of `as_list`."""
        return cls(tuple(FeatureStream(row["name"], row["width"]) for row in rows))

    def require(self, held: "FeatureSpec", where: object) -> None:
        """Raises an `OutriderError` if `held`, stored at `where`, lacks a stream."""
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
    """One stream [T, H] of a sequence."""
    return states.hidden if name == FINAL_NORM else states.auxiliary[name]
