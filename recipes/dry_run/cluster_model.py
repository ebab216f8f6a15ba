"""Discrete-event model of capture, transfer, training and evaluation on a cluster.

    simulate(Work(pieces, epochs=2), Rates(10_000, 20_000, 14_340), Layout(replicas=4)).seconds

Replicas capture the pieces of a plan, in its order, as they get free; each has a second piece
waiting. A piece counts as held from the moment that it is given to a replica until it is consumed;
the limit on held bytes stops the replicas when the consumer is slow. The consumer takes pieces in
the plan's order over its network: the writer of the feature store, or training itself. Stored
training then reads the store once per epoch. Streamed training draws its rows from windows of some
pieces: it waits for all pieces of a window, and holds them until the window ends.

Every part is one `_Pipeline` of producers, a link and a consumer. Rates are measured in a small
run. Times are in seconds, sizes in bytes. Nothing is random: what varies is the length of pieces.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import simpy

AT_A_TIME = 2
"""Pieces that a replica has: one that it captures and one that waits
(`data.features.replica.PIECES_AT_A_TIME`)."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one part of the cluster does per second."""

    capture_tokens_per_s: float
    """One capture replica."""
    training_tokens_per_s: float
    """All training workers together."""
    bytes_per_token: float
    """Captured states and token ids, in memory and over the network."""
    stored_bytes_per_token: float | None = None
    """The same in the feature store; None: as many."""
    network_bytes_per_s: float = math.inf
    """Into the consumer: the node of the command, or all training nodes together."""
    write_bytes_per_s: float = math.inf
    """Feature store, written by the command."""
    read_bytes_per_s: float = math.inf
    """Feature store, read by all training workers together."""
    replica_start_s: float = 0.0
    """Start and self-check of a replica."""
    piece_s: float = 0.0
    """Cost of a piece on its replica besides its tokens."""
    training_start_s: float = 0.0
    replay_tokens_per_s: float = math.inf
    """One evaluation task."""

    @property
    def on_disk(self) -> float:
        """Bytes of a token in the feature store."""
        stored = self.stored_bytes_per_token
        return self.bytes_per_token if stored is None else stored


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the cluster runs."""

    replicas: int
    streamed: bool = False
    held_bytes: float = math.inf
    """Limit on states that are captured or being captured, and not consumed."""
    replay_tasks: int = 1
    cache_bytes: float = 0.0
    """Streamed: states of the training part that stay in memory after the first epoch."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Tokens to capture, train on and replay."""

    pieces: Sequence[int]
    """Tokens of each piece of the training part."""
    epochs: int = 1
    other_pieces: Sequence[int] = ()
    """Tokens of each piece that is stored and not trained on: validation, held-out. Streamed, a
    capture of their own precedes training, and replicas start again for the stream."""
    window_pieces: int = 1
    """Pieces whose sequences streamed training mixes."""
    replayed_tokens: int = 0
    """Tokens that evaluation replays, over all its passes."""
    served_s: float = 0.0
    """Measurement in servers, on a node that does nothing else meanwhile."""

    @property
    def trained_tokens(self) -> int:
        """Tokens of one epoch."""
        return sum(self.pieces)


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When what ends, how busy each part is, and what is held and moved."""

    capture_s: float
    """End of the last capture."""
    first_step_s: float
    """Start of the first training step."""
    training_s: float
    """End of training."""
    seconds: float
    """End of the evaluation."""
    busy: dict[str, float]
    """Share of the time until training ends in which a part works: `capture` (mean over the
    replicas), `network`, `disk`, `training`."""
    held_bytes: float
    """Largest number of bytes held between capture and consumer."""
    node_bytes: float
    """The same of the replica that holds most: the object store that a node needs."""
    moved_bytes: float
    """Over the network, from replicas to the consumer."""
    disk_bytes: float
    """Written to and read from the feature store."""
    captured_tokens: int


@dataclasses.dataclass(frozen=True)
class _Item:
    """One piece on its way through a pipeline."""

    produce_s: float
    bytes: int
    transfer_s: float
    consume_s: float


class _Pipeline:
    """Producers hand items in order over one link to one consumer, within a limit of bytes.

    The consumer takes groups of items as a whole. The limit is at least one group.
    """

    def __init__(
        self,
        env: simpy.Environment,
        items: Sequence[_Item],
        producers: int,
        limit: float,
        ready_s: float = 0.0,
        consumer_ready_s: float = 0.0,
        group: int = 1,
    ):
        """`group`: items that the consumer takes together. `ready_s`, `consumer_ready_s`: time
        from now until the producers and the consumer work."""
        self.env, self.items = env, items
        self.groups = [range(n, min(n + group, len(items))) for n in range(0, len(items), group)]
        sizes = [sum(items[index].bytes for index in each) for each in self.groups]
        # An integer: sums of floats would leave room that is never free again.
        self.limit = int(max(min(limit, sum(sizes) or 1), *sizes, 1))
        self.places = simpy.Container(env)
        self.has = [0] * producers
        """Items that each producer has."""
        self.room = simpy.Container(env, self.limit, init=self.limit)
        self.produced = [env.event() for _ in items]
        self.carried = [env.event() for _ in items]
        self.busy = {"produce": 0.0, "carry": 0.0, "consume": 0.0}
        self.produced_s = self.first_consumed_s = env.now
        self.held, self.most_held = 0, 0
        self.held_by, self.most_held_by = [0] * producers, 0
        self.maker = [0] * len(items)
        self.at_work = [simpy.Resource(env) for _ in range(producers)]
        env.process(self._open(ready_s))
        env.process(self._hand_out())
        env.process(self._carry())
        self.end = env.process(self._consume(consumer_ready_s))

    def _open(self, ready_s: float) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(ready_s)
        yield self.places.put(AT_A_TIME * len(self.at_work))

    def _hand_out(self) -> Generator[simpy.Event, Any, None]:
        for index, item in enumerate(self.items):
            if item.bytes:
                yield self.room.get(item.bytes)
            yield self.places.get(1)
            number = self.has.index(min(self.has))  # an idle one, if there is one
            self.has[number] += 1
            self.env.process(self._produce(index, item, number))

    def _produce(self, index: int, item: _Item, number: int) -> Generator[simpy.Event, Any, None]:
        self.maker[index] = number
        self._hold(item.bytes, number)
        with self.at_work[number].request() as turn:
            yield turn
            yield self.env.timeout(item.produce_s)
        self.busy["produce"] += item.produce_s
        self.produced_s = max(self.produced_s, self.env.now)
        self.produced[index].succeed()
        self.has[number] -= 1
        yield self.places.put(1)

    def _hold(self, change: int, number: int) -> None:
        self.held += change
        self.held_by[number] += change
        self.most_held = max(self.most_held, self.held)
        self.most_held_by = max(self.most_held_by, self.held_by[number])

    def _carry(self) -> Generator[simpy.Event, Any, None]:
        for index, item in enumerate(self.items):
            yield self.produced[index]
            yield self.env.timeout(item.transfer_s)
            self.busy["carry"] += item.transfer_s
            self.carried[index].succeed()

    def _consume(self, ready_s: float) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(ready_s)
        self.first_consumed_s = math.inf
        for group in self.groups:
            for index in group:
                yield self.carried[index]
            self.first_consumed_s = min(self.first_consumed_s, self.env.now)
            seconds = sum(self.items[index].consume_s for index in group)
            yield self.env.timeout(seconds)
            self.busy["consume"] += seconds
            for index in group:
                self._hold(-self.items[index].bytes, self.maker[index])
            if size := sum(self.items[index].bytes for index in group):
                yield self.room.put(size)


def simulate(work: Work, rates: Rates, layout: Layout) -> Timeline:
    """Runs the model once.

    Stored: capture ends before training starts, and training reads the store in each epoch.
    Streamed: training starts with the first window and captures again in each epoch what does not
    stay in memory.
    """
    if layout.replicas < 1:
        raise ValueError("a cluster needs at least one capture replica")
    env = simpy.Environment()
    stored = (*work.other_pieces, *(() if layout.streamed else work.pieces))
    capture = _capture(env, stored, rates, layout)
    env.run(capture.end)
    written_s = env.now
    training = (_streamed if layout.streamed else _stored)(env, work, rates, layout)
    env.run(training.end)
    moved = sum(item.bytes for item in capture.items)
    streamed = sum(item.bytes for item in training.items)
    disk = sum(stored) + (0 if layout.streamed else work.epochs * work.trained_tokens)
    captured_s = capture.busy["produce"] + training.busy["produce"] * layout.streamed
    busy_s = {
        "capture": captured_s / layout.replicas,
        "network": capture.busy["carry"] + training.busy["carry"],
        "disk": capture.busy["consume"] + training.busy["produce"] * (not layout.streamed),
        "training": training.busy["consume"],
    }
    return Timeline(
        capture_s=training.produced_s if layout.streamed else written_s,
        first_step_s=training.first_consumed_s,
        training_s=env.now,
        seconds=env.now + evaluation_s(work, rates, layout),
        busy={name: seconds / env.now for name, seconds in busy_s.items()},
        held_bytes=max(capture.most_held, training.most_held),
        node_bytes=max(capture.most_held_by, training.most_held_by),
        moved_bytes=moved + streamed,
        disk_bytes=disk * rates.on_disk,
        captured_tokens=round((moved + streamed) / rates.bytes_per_token),
    )


def _capture(
    env: simpy.Environment, pieces: Sequence[int], rates: Rates, layout: Layout
) -> _Pipeline:
    """Capture into the feature store."""
    items = [
        _Item(
            *_captured(tokens, rates),
            consume_s=tokens * rates.on_disk / rates.write_bytes_per_s,
        )
        for tokens in pieces
    ]
    start_s = rates.replica_start_s if items else 0.0
    return _Pipeline(env, items, layout.replicas, layout.held_bytes, start_s)


def _captured(tokens: int, rates: Rates) -> tuple[float, int, float]:
    """Seconds, bytes, and seconds of transfer of a piece."""
    size = tokens * rates.bytes_per_token
    seconds = rates.piece_s + tokens / rates.capture_tokens_per_s if tokens else 0.0
    return seconds, round(size), size / rates.network_bytes_per_s


def _stored(env: simpy.Environment, work: Work, rates: Rates, layout: Layout) -> _Pipeline:
    """Training that reads the store, one reader ahead of it."""
    items = [
        _Item(
            tokens * rates.on_disk / rates.read_bytes_per_s,
            0,
            0.0,
            tokens / rates.training_tokens_per_s,
        )
        for _ in range(work.epochs)
        for tokens in work.pieces
    ]
    return _Pipeline(env, items, 1, math.inf, consumer_ready_s=rates.training_start_s)


def _streamed(env: simpy.Environment, work: Work, rates: Rates, layout: Layout) -> _Pipeline:
    """Training that takes captured pieces, the states of later epochs from memory if they fit.

    The order of an epoch is random, so the states in memory are spread evenly over its pieces.
    """
    whole = work.trained_tokens * rates.bytes_per_token
    kept = min(1.0, layout.cache_bytes / whole) if whole else 0.0
    items = [
        _Item(
            *_captured(round(tokens * (1 - kept)) if epoch else tokens, rates),
            consume_s=tokens / rates.training_tokens_per_s,
        )
        for epoch in range(work.epochs)
        for tokens in work.pieces
    ]
    return _Pipeline(
        env,
        items,
        layout.replicas,
        layout.held_bytes,
        rates.replica_start_s,
        rates.training_start_s,
        work.window_pieces,
    )


def evaluation_s(work: Work, rates: Rates, layout: Layout) -> float:
    """Replay over tasks, then the measurement in servers, one after the other."""
    return work.replayed_tokens / rates.replay_tokens_per_s / layout.replay_tasks + work.served_s


NO_GAIN = 1.01
"""A run that is at most 1 % longer counts as not longer."""


def enough_replicas(work: Work, rates: Rates, layout: Layout) -> int:
    """The number of replicas beyond which training does not end more than 1 % sooner.

    The limit on held bytes stays as it is: it may be what ends the gain. Exact up to 16, to 10 %
    above.
    """

    def with_replicas(count: int) -> Layout:
        return dataclasses.replace(layout, replicas=count)

    return _least(with_replicas, work, rates)


def enough_held_bytes(work: Work, rates: Rates, layout: Layout) -> float:
    """The smallest limit on held bytes, in largest pieces, that costs at most 1 % of the time."""
    largest = max((*work.pieces, *work.other_pieces)) * rates.bytes_per_token

    def limited(count: int) -> Layout:
        return dataclasses.replace(layout, held_bytes=count * largest)

    return largest * _least(limited, work, rates)


def tried(most: int) -> Iterator[int]:
    """1 to 16, then steps of a tenth, and `most`."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // 10) if count >= 16 else 1
    yield most


def _least(layout_of: Callable[[int], Layout], work: Work, rates: Rates) -> int:
    """The least number whose layout is as fast as that of one for each piece."""
    most = len(work.pieces) + len(work.other_pieces)
    enough = NO_GAIN * simulate(work, rates, layout_of(most)).training_s
    counts = tried(most)
    return next(n for n in counts if simulate(work, rates, layout_of(n)).training_s <= enough)


def gains(work: Work, rates: Rates, layout: Layout) -> dict[str, float]:
    """Share of the time to the end of training that doubling each part saves."""
    now = simulate(work, rates, layout).training_s

    def saved(**changes: Any) -> float:
        names = {field.name for field in dataclasses.fields(Rates)}
        other = dataclasses.replace(rates, **{k: v for k, v in changes.items() if k in names})
        laid = dataclasses.replace(layout, **{k: v for k, v in changes.items() if k not in names})
        return 1 - simulate(work, other, laid).training_s / now

    return {
        "capture": saved(replicas=2 * layout.replicas),
        "network": saved(network_bytes_per_s=2 * rates.network_bytes_per_s),
        "disk": saved(
            write_bytes_per_s=2 * rates.write_bytes_per_s,
            read_bytes_per_s=2 * rates.read_bytes_per_s,
        ),
        "training": saved(training_tokens_per_s=2 * rates.training_tokens_per_s),
        "held bytes": saved(held_bytes=2 * layout.held_bytes),
    }
