"""Discrete-event model of capture, transfer, training and evaluation on a cluster.

    simulate(Work(pieces, epochs=2), Rates(10_000, 20_000, 14_340), Layout(replicas=4)).seconds

Replicas capture the pieces of a plan, in its order, as they get free; each has a second piece
waiting. A piece counts as held from the moment that it is given to a replica until it is consumed;
the limit on held bytes stops the replicas when the consumer is slow. The consumer takes pieces in
the plan's order over its network: the writer of the feature store, or training itself. Stored
training then reads the store once per epoch.

Every part is one `_Pipeline` of producers, a link and a consumer. Rates are measured in a small
run. Times are in seconds, sizes in bytes. Nothing is random: what varies is the length of pieces.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import simpy

READ_AHEAD = 2
"""Pieces that the consumer holds ahead of the one that it works on."""

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
    """Tokens of each piece that is captured first and not trained on: validation, held-out."""
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
    """Producers hand items in order over one link to one consumer, within a limit of bytes."""

    def __init__(
        self,
        env: simpy.Environment,
        items: Sequence[_Item],
        producers: int,
        limit: float,
        ready_s: float = 0.0,
        consumer_ready_s: float = 0.0,
    ):
        """`ready_s`: time from now until the producers, `consumer_ready_s`: until the consumer
        works."""
        self.env, self.items = env, items
        # An integer: sums of floats would leave room that is never free again.
        self.limit = int(min(limit, sum(item.bytes for item in items) or 1))
        self.places = simpy.Container(env)
        self.has = [0] * producers
        """Items that each producer has."""
        self.room = simpy.Container(env, self.limit, init=self.limit)
        self.produced = [env.event() for _ in items]
        self.carried: simpy.Store = simpy.Store(env, capacity=READ_AHEAD)
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
            if room := self._room(item):
                yield self.room.get(room)
            yield self.places.get(1)
            number = self.has.index(min(self.has))  # an idle one, if there is one
            self.has[number] += 1
            self.env.process(self._produce(index, item, number))

    def _room(self, item: _Item) -> int:
        """Bytes of the limit that an item takes; one that exceeds the limit is alone."""
        return min(item.bytes, self.limit)

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
            yield self.carried.put(item)

    def _consume(self, ready_s: float) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(ready_s)
        self.first_consumed_s = math.inf
        for index, item in enumerate(self.items):
            yield self.carried.get()
            if item.consume_s:
                self.first_consumed_s = min(self.first_consumed_s, self.env.now)
            yield self.env.timeout(item.consume_s)
            self.busy["consume"] += item.consume_s
            self._hold(-item.bytes, self.maker[index])
            if room := self._room(item):
                yield self.room.put(room)


def simulate(work: Work, rates: Rates, layout: Layout) -> Timeline:
    """Runs the model once.

    Stored: capture ends before training starts, and training reads the store in each epoch.
    Streamed: training starts with the first piece and captures again in each epoch what does not
    stay in memory.
    """
    if layout.replicas < 1:
        raise ValueError("a cluster needs at least one capture replica")
    return _streamed(work, rates, layout) if layout.streamed else _stored(work, rates, layout)


def _stored(work: Work, rates: Rates, layout: Layout) -> Timeline:
    env = simpy.Environment()
    size, stored = rates.bytes_per_token, rates.on_disk
    captured = [
        _Item(
            rates.piece_s + tokens / rates.capture_tokens_per_s,
            round(tokens * size),
            tokens * size / rates.network_bytes_per_s,
            tokens * stored / rates.write_bytes_per_s,
        )
        for tokens in (*work.other_pieces, *work.pieces)
    ]
    capture = _Pipeline(env, captured, layout.replicas, layout.held_bytes, rates.replica_start_s)
    env.run(capture.end)
    written_s = env.now
    read = [
        _Item(
            tokens * stored / rates.read_bytes_per_s, 0, 0.0, tokens / rates.training_tokens_per_s
        )
        for _ in range(work.epochs)
        for tokens in work.pieces
    ]
    training = _Pipeline(env, read, 1, math.inf, consumer_ready_s=rates.training_start_s)
    env.run(training.end)
    captured_tokens = work.trained_tokens + sum(work.other_pieces)
    busy_s = {
        "capture": capture.busy["produce"] / layout.replicas,
        "network": capture.busy["carry"],
        "disk": capture.busy["consume"] + training.busy["produce"],
        "training": training.busy["consume"],
    }
    disk_bytes = (captured_tokens + work.epochs * work.trained_tokens) * stored
    return Timeline(
        capture_s=written_s,
        first_step_s=training.first_consumed_s,
        training_s=env.now,
        seconds=env.now + evaluation_s(work, rates, layout),
        busy={name: seconds / env.now for name, seconds in busy_s.items()},
        held_bytes=capture.most_held,
        node_bytes=capture.most_held_by,
        moved_bytes=captured_tokens * size,
        disk_bytes=disk_bytes,
        captured_tokens=captured_tokens,
    )


def _streamed(work: Work, rates: Rates, layout: Layout) -> Timeline:
    env = simpy.Environment()
    plan = list(_streamed_pieces(work, rates, layout))
    size = rates.bytes_per_token
    items = [
        _Item(
            rates.piece_s + captured / rates.capture_tokens_per_s if captured else 0.0,
            round(captured * size),
            captured * size / rates.network_bytes_per_s,
            trained / rates.training_tokens_per_s,
        )
        for captured, trained in plan
    ]
    flow = _Pipeline(
        env,
        items,
        layout.replicas,
        layout.held_bytes,
        rates.replica_start_s,
        rates.training_start_s,
    )
    env.run(flow.end)
    tokens = sum(captured for captured, _ in plan)
    busy_s = {
        "capture": flow.busy["produce"] / layout.replicas,
        "network": flow.busy["carry"],
        "disk": 0.0,
        "training": flow.busy["consume"],
    }
    return Timeline(
        capture_s=flow.produced_s,
        first_step_s=flow.first_consumed_s,
        training_s=env.now,
        seconds=env.now + evaluation_s(work, rates, layout),
        busy={name: seconds / env.now for name, seconds in busy_s.items()},
        held_bytes=flow.most_held,
        node_bytes=flow.most_held_by,
        moved_bytes=tokens * size,
        disk_bytes=0.0,
        captured_tokens=tokens,
    )


def _streamed_pieces(work: Work, rates: Rates, layout: Layout) -> Iterator[tuple[int, int]]:
    """(tokens to capture, tokens to train on) of each piece, over all epochs.

    The order of an epoch is random, so the states in memory are spread evenly over its pieces.
    """
    for tokens in work.other_pieces:
        yield tokens, 0
    whole = work.trained_tokens * rates.bytes_per_token
    cached = min(1.0, layout.cache_bytes / whole) if whole else 0.0
    for epoch in range(work.epochs):
        for tokens in work.pieces:
            yield (round(tokens * (1 - cached)) if epoch else tokens), tokens


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
