"""The discrete-event model against arithmetic, and against recurrences without an event queue."""

import dataclasses
import itertools
import math
import random
from pathlib import Path

import pytest

pytest.importorskip("simpy")
import simpy

from outrider.recipes.dry_run import cluster_model
from outrider.recipes.dry_run.cluster_model import (
    AT_A_TIME,
    Layout,
    Rates,
    Work,
    enough_held_bytes,
    enough_replicas,
    gains,
    simulate,
    tried,
)

RATES = Rates(capture_tokens_per_s=100, training_tokens_per_s=math.inf, bytes_per_token=10)


def literal(items, producers, limit, ready, consumer_ready, group):
    """Times of every item by recurrences: (handed out, produced, consumed to)."""
    sizes = [sum(i.bytes for i in items[n : n + group]) for n in range(0, len(items), group)]
    limit = max(min(limit, sum(sizes)), *sizes)
    handed, produced, carried, ended = [], [], [], []
    idle = [ready] * producers
    having = []  # (producer, produced) of each item handed out
    for index, item in enumerate(items):
        room = handed[-1] if handed else 0.0
        for other in range(index):  # wait for items before, oldest first, until this one fits
            held = sum(items[j].bytes for j in range(index) if j >= len(ended) or ended[j] > room)
            if held + item.bytes <= limit:
                break
            room = max(room, ended[other])
        room = max(room, ready)
        places = sorted(produced)  # one place gets free whenever an item is produced
        if index >= AT_A_TIME * producers:
            room = max(room, places[index - AT_A_TIME * producers])
        has = [sum(n == number and end > room for n, end in having) for number in range(producers)]
        number = has.index(min(has))
        handed.append(room)
        idle[number] = max(room, idle[number]) + item.produce_s
        produced.append(idle[number])
        having.append((number, idle[number]))
        carried.append(max([produced[-1], *carried[-1:]]) + item.transfer_s)
        if (index + 1) % group == 0 or index + 1 == len(items):
            together = items[len(ended) : index + 1]
            begun = max([carried[-1], consumer_ready, *ended[-1:]])
            ended += [begun + sum(one.consume_s for one in together)] * len(together)
    return handed, produced, ended


@pytest.mark.parametrize("seed", range(40))
def test_a_pipeline_is_its_recurrences(seed):
    draw = random.Random(seed)
    items = [
        cluster_model._Item(
            draw.uniform(1, 9), draw.randint(1, 50), draw.uniform(0, 3), draw.uniform(0, 6)
        )
        for _ in range(draw.randint(1, 40))
    ]
    producers, limit = draw.randint(1, 6), draw.choice([20, 60, 200, 10**9])
    ready, consumer_ready = draw.uniform(0, 5), draw.uniform(0, 50)
    env = simpy.Environment()
    group = draw.choice([1, 1, 2, 5])
    flow = cluster_model._Pipeline(env, items, producers, limit, ready, consumer_ready, group)
    env.run(flow.end)
    handed, produced, ended = literal(items, producers, limit, ready, consumer_ready, group)
    assert env.now == pytest.approx(ended[-1])
    assert flow.produced_s == pytest.approx(max(produced))
    moments = sorted({*handed})
    held = [
        sum(
            item.bytes
            for item, start, end in zip(items, handed, ended, strict=True)
            if start <= moment < end
        )
        for moment in moments
    ]
    assert flow.most_held == max(held)
    assert flow.most_held <= flow.limit


def test_one_replica_and_a_consumer_that_costs_nothing():
    work = Work(pieces=[300, 500, 200], other_pieces=[100])
    rates = dataclasses.replace(RATES, replica_start_s=7, piece_s=0.5)
    for streamed in (False, True):
        found = simulate(work, rates, Layout(1, streamed))
        starts = 14 if streamed else 7  # replicas start again for the stream
        assert found.capture_s == pytest.approx(starts + 1100 / 100 + 4 * 0.5)
        assert found.seconds == pytest.approx(found.capture_s)
        assert found.moved_bytes == 11_000
        assert found.captured_tokens == 1100


def test_replicas_share_equal_pieces():
    work = Work(pieces=[100] * 12)
    for replicas in (1, 2, 3, 4, 5, 12, 20):
        found = simulate(work, RATES, Layout(replicas))
        assert found.seconds == pytest.approx(math.ceil(12 / replicas))


def test_stored_training_waits_for_capture_and_reads_every_epoch():
    work = Work(pieces=[100] * 10, epochs=3, other_pieces=[50, 50])
    rates = dataclasses.replace(RATES, training_tokens_per_s=200, training_start_s=4)
    found = simulate(work, rates, Layout(2))
    assert found.capture_s == pytest.approx(5.5)  # ten pieces of 1 s and two of 0.5 s by two
    assert found.first_step_s == pytest.approx(9.5)
    assert found.training_s == pytest.approx(9.5 + 3 * 1000 / 200)
    assert found.disk_bytes == 10 * (1100 + 3 * 1000)
    slow = dataclasses.replace(rates, read_bytes_per_s=1000)  # 100 tokens a second
    read = simulate(work, slow, Layout(2))
    assert read.training_s == pytest.approx(5.5 + 3 * 1000 / 100 + 100 / 200)
    written = dataclasses.replace(rates, write_bytes_per_s=1000)
    assert simulate(work, written, Layout(2)).capture_s == pytest.approx(0.5 + 11)


def test_streamed_training_waits_for_its_window_and_holds_it():
    rates = dataclasses.replace(RATES, training_tokens_per_s=200)
    work = Work(pieces=[100] * 12, window_pieces=4)
    found = simulate(work, rates, Layout(2, streamed=True, held_bytes=8000))
    assert found.first_step_s == pytest.approx(2)  # four pieces of 1 s by two replicas
    # A window trains in the time in which the next is captured.
    assert found.training_s == pytest.approx(2 + 3 * 2)
    assert found.held_bytes == 8000
    # Room for one window alone: capture waits for training.
    alone = simulate(work, rates, Layout(2, streamed=True, held_bytes=1))
    assert alone.held_bytes == 4000
    assert alone.training_s == pytest.approx(3 * (2 + 2))


def test_streamed_training_starts_with_the_first_piece():
    work = Work(pieces=[100] * 10, epochs=2)
    rates = dataclasses.replace(RATES, training_tokens_per_s=1000)
    found = simulate(work, rates, Layout(1, streamed=True))
    assert found.first_step_s == pytest.approx(1)
    assert found.training_s == pytest.approx(20 + 0.1)  # capture of both epochs, one last piece
    slow = dataclasses.replace(rates, training_tokens_per_s=50)
    assert simulate(work, slow, Layout(1, streamed=True)).training_s == pytest.approx(1 + 40)
    kept = Layout(1, streamed=True, cache_bytes=5000)  # half of an epoch's 10,000 bytes
    assert simulate(work, rates, kept).captured_tokens == 1500
    assert simulate(work, rates, kept).training_s == pytest.approx(15 + 0.1)


def test_a_slow_consumer_stops_the_replicas_at_the_limit():
    work = Work(pieces=[100] * 50)
    rates = dataclasses.replace(RATES, training_tokens_per_s=10)
    free = simulate(work, rates, Layout(4, streamed=True))
    bound = simulate(work, rates, Layout(4, streamed=True, held_bytes=3000))
    assert free.held_bytes > 40_000 and bound.held_bytes == 3000
    assert bound.training_s == pytest.approx(free.training_s)
    assert bound.node_bytes <= 3000
    # A limit below one piece lets one piece through at a time.
    tiny = simulate(work, rates, Layout(4, streamed=True, held_bytes=1))
    assert tiny.held_bytes == 1000
    assert tiny.training_s == pytest.approx(50 * 11)


def test_what_a_search_tries():
    found = list(tried(1000))
    assert found[:16] == list(range(1, 17)) and found[-1] == 1000 and len(found) < 70
    assert all(b <= 1.1 * a + 1 for a, b in itertools.pairwise(found))


def test_a_replica_has_as_many_pieces_as_in_the_cluster():
    source = Path(__file__).parents[3] / "data" / "features" / "replica.py"
    assert f"\nPIECES_AT_A_TIME = {AT_A_TIME}\n" in source.read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(5))
def test_searches_find_what_trying_everything_finds(seed):
    draw = random.Random(seed)
    work = Work([draw.randint(20, 200) for _ in range(18)], epochs=draw.choice([1, 2]))
    rates = dataclasses.replace(RATES, training_tokens_per_s=draw.choice([150, 400, 900]))
    layout = Layout(2, streamed=True, held_bytes=draw.choice([4000, 10**9]))

    def times(layouts):
        return [simulate(work, rates, each).training_s for each in layouts]

    counts = list(range(1, 19))
    assert list(tried(18)) == counts
    by_replicas = times(dataclasses.replace(layout, replicas=n) for n in counts)
    enough = next(n for n, s in enumerate(by_replicas, 1) if s <= 1.01 * by_replicas[-1])
    assert enough_replicas(work, rates, layout) == enough
    largest = max(work.pieces) * 10
    by_limit = times(dataclasses.replace(layout, held_bytes=n * largest) for n in counts)
    enough = next(n for n, s in enumerate(by_limit, 1) if s <= 1.01 * by_limit[-1])
    assert enough_held_bytes(work, rates, layout) == enough * largest


def test_the_bottleneck_is_what_helps_when_doubled():
    work = Work(pieces=[100] * 100)
    trained = dataclasses.replace(RATES, training_tokens_per_s=100)
    few = gains(work, dataclasses.replace(RATES, training_tokens_per_s=1000), Layout(1, True))
    assert max(few, key=few.get) == "capture" and few["capture"] == pytest.approx(0.5, abs=0.02)
    many = gains(work, trained, Layout(8, True))
    assert max(many, key=many.get) == "training" and many["capture"] < 0.02
    narrow = dataclasses.replace(trained, network_bytes_per_s=100)
    thin = gains(work, narrow, Layout(8, True))
    assert max(thin, key=thin.get) == "network"
    tight = gains(work, RATES, Layout(8, True, held_bytes=2000))
    assert max(tight, key=tight.get) == "held bytes"
    stored = gains(work, dataclasses.replace(RATES, write_bytes_per_s=500), Layout(8))
    assert max(stored, key=stored.get) == "disk"


def test_evaluation_is_replay_in_tasks_and_then_the_servers_alone():
    work = Work(pieces=[100], replayed_tokens=6000, served_s=30)
    rates = dataclasses.replace(RATES, replay_tokens_per_s=100)
    one, four = (simulate(work, rates, Layout(1, replay_tasks=n)) for n in (1, 4))
    assert one.seconds - one.training_s == pytest.approx(60 + 30)
    assert four.seconds - four.training_s == pytest.approx(15 + 30)
