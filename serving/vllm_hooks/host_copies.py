"""Copies the states of engine steps to the host while the next step computes.

    copies = HostCopies()
    copies.add([hidden_NH], [Piece(put=prompt.put, start=0, row=0, tokens=96)])
    copies.finish()

A step has one state or several (`speculators.features`), of the same tokens.

On a GPU the copy runs on its own stream into pinned memory, and its rows are handed out when the
next step has been launched: 16,384 tokens of R1 are 235 MB, 50 ms from pageable memory in a step of
about a second. At most one step waits. On a CPU there is nothing to wait for.

Shapes: N tokens of a step, H hidden.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class Piece(NamedTuple):
    """One request's rows of a step."""

    put: Callable[[int, list[torch.Tensor]], None]
    """Takes the position of the first row, and the rows [tokens, H] of each state."""
    start: int
    row: int
    tokens: int


class Copy(NamedTuple):
    """A step's states on the host, complete once `wait` returns."""

    states_NH: list[torch.Tensor]
    wait: Callable[[], object]


class HostCopies:
    """Steps whose states are on their way to the host."""

    def __init__(self, copy: Callable[[Sequence[torch.Tensor]], Copy | None] | None = None) -> None:
        """`copy` begins a copy; None from it: the states can be read at once."""
        self._copy = copy or _begin
        self._waiting: list[tuple[Copy, Sequence[Piece]]] = []

    def add(self, states_NH: Sequence[torch.Tensor], pieces: Sequence[Piece]) -> None:
        """Begins the copy of a step, and hands out the rows of the one before."""
        begun = self._copy(states_NH) if pieces else None
        self.finish()
        if begun is not None:
            self._waiting.append((begun, pieces))
        elif pieces:
            _hand_out([state_NH.to("cpu", torch.bfloat16) for state_NH in states_NH], pieces)

    def finish(self) -> None:
        """Hands out the rows of every step."""
        for copy, pieces in self._waiting:
            copy.wait()
            _hand_out(copy.states_NH, pieces)
        self._waiting = []


def _hand_out(states_NH: Sequence[torch.Tensor], pieces: Sequence[Piece]) -> None:
    for put, start, row, tokens in pieces:
        put(start, [state_NH[row : row + tokens] for state_NH in states_NH])


def _begin(states_NH: Sequence[torch.Tensor]) -> Copy | None:
    device = states_NH[0].device
    if device.type != "cuda":
        return None
    stream, copied = _stream(device), []
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for state_NH in states_NH:
            narrow_NH = state_NH.to(torch.bfloat16)
            host_NH = torch.empty(narrow_NH.shape, dtype=torch.bfloat16, pin_memory=True)
            host_NH.copy_(narrow_NH, non_blocking=True)
            copied.append(host_NH)
            # The allocator may give the step's memory away only after the copy.
            state_NH.record_stream(stream)
        event = torch.cuda.Event()
        event.record(stream)
    return Copy(copied, event.synchronize)


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
