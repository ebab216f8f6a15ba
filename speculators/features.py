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
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    import torch
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


@dataclasses.dataclass(frozen=True)
class SequenceStates:
    """One sequence: its token ids, and the target's states at each position."""

    token_ids: "Tensor"
    """[T]"""
    completion_start: int
    """Index of the first token that the target generated."""
    streams: "Mapping[str, Tensor]"
    """[T, H] of each stream, by name."""
    scores: list[list[float]] | None = None
    """Sums of the target's scores of the completion, as in serving/token_scores.py: [2][C].
    None if it was not scored, or if the scores were not read."""

    @property
    def hidden(self) -> "Tensor":
        """[T, H] after the final norm, which the target's head reads."""
        return self.streams[FINAL_NORM]

    def __reduce__(self) -> "tuple[_Unpack, _PackedStates]":
        """Pickles tensors as numpy arrays, which Ray's object store shares without a copy.

        Unpickling copies them, so that the object store can free its memory.
        """
        streams = {name: _packed(tensor) for name, tensor in self.streams.items()}
        return _unpacked, (_packed(self.token_ids), self.completion_start, streams, self.scores)


_Packed = tuple[object, "torch.dtype"]
"""A tensor's bytes as an array of uint8, since numpy has no bfloat16, and its dtype."""

_PackedStates = tuple[_Packed, int, dict[str, _Packed], list[list[float]] | None]
"""The fields of `SequenceStates`."""

_Unpack = Callable[[_Packed, int, dict[str, _Packed], list[list[float]] | None], SequenceStates]


def _packed(tensor: "Tensor") -> _Packed:
    import torch

    return tensor.contiguous().view(torch.uint8).numpy(), tensor.dtype


def _unpacked(
    token_ids: _Packed,
    completion_start: int,
    streams: dict[str, _Packed],
    scores: list[list[float]] | None,
) -> SequenceStates:
    import numpy as np
    import torch

    def tensor(packed: _Packed) -> "Tensor":
        array, dtype = packed
        return torch.from_numpy(np.array(array)).view(dtype)

    return SequenceStates(
        token_ids=tensor(token_ids),
        completion_start=completion_start,
        streams={name: tensor(packed) for name, packed in streams.items()},
        scores=scores,
    )


class StreamRow(TypedDict):
    """A `FeatureStream` in JSON."""

    name: str
    width: int


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
        layers = {stream for stream in self.streams if stream.name != FINAL_NORM}
        return tuple(sorted(layers, key=lambda stream: layer_index(stream.name)))

    def stored(self, hidden_size: int) -> "FeatureSpec":
        """The streams that a feature store holds: the teacher's, then the others."""
        return FeatureSpec((FeatureStream(FINAL_NORM, hidden_size), *self.auxiliary))

    @classmethod
    def union(cls, specs: "Iterable[FeatureSpec]") -> "FeatureSpec":
        """The streams of several drafters without duplicates, for one shared capture."""
        return cls(tuple(dict.fromkeys(stream for spec in specs for stream in spec.streams)))

    def inputs(self, states: SequenceStates) -> "Tensor":
        """The drafter's inputs [T, X]; a single stream is not copied."""
        inputs = [states.streams[name] for name in self.names]
        if len(inputs) == 1:
            return inputs[0]
        import torch

        return torch.cat(inputs, dim=-1)

    def as_list(self) -> list[StreamRow]:
        """The spec as stored in a feature store's manifest."""
        return [StreamRow(name=stream.name, width=stream.width) for stream in self.streams]

    @classmethod
    def from_list(cls, rows: Iterable[StreamRow]) -> "FeatureSpec":
        """The inverse of `as_list`."""
        return cls(tuple(FeatureStream(row["name"], row["width"]) for row in rows))

    def require(self, held: "FeatureSpec", where: object) -> None:
        """Raises an `OutriderError` if `held`, stored at `where`, lacks a stream."""
        missing = [stream for stream in self.streams if stream not in held.streams]
        if missing:
            raise OutriderError(
                f"{where}: holds the target's states {_in_words(held.streams)}, but the speculator"
                f" reads {_in_words(missing)}; run the capture stage again with this"
                " speculator.kind"
            )


def _in_words(streams: Iterable[FeatureStream]) -> str:
    return ", ".join(f"{stream.name} ({stream.width} values)" for stream in streams)
