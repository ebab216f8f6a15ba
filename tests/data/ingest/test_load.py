"""The load of a log, against hand-computed numbers, a simulation and queueing theory."""

import numpy as np
import pytest
from scipy.stats import poisson

from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.ingest.load import busy_time_shares, load_in_words, load_of, measured_sizes
from outrider.data.ingest.traffic_facts import traffic_facts
from tests.data.logs import pair, screenings, write_log


def load(times, seconds, tokens=None, tpot_ms=30.0):
    tokens = np.ones(len(times)) if tokens is None else np.array(tokens)
    arrays = [np.array(values, float) for values in (times, seconds)]
    return load_of(times=arrays[0], seconds=arrays[1], tokens=tokens, tpot_ms=tpot_ms)


def test_shares_of_the_busy_time_by_hand() -> None:
    # One request for 2 s, two for 3 s, one for 1 s; later, after a pause, one for 4 s.
    found = load([0, 2, 100], [5, 4, 4])
    assert found["busy_share"] == {"1": 0.7, "2": 0.3}
    assert (found["p50"], found["p90"], found["p99"], found["max"]) == (1, 2, 2, 2)
    assert busy_time_shares(found, [8, 1]) == pytest.approx({1: 0.7, 8: 0.3})
    assert (found["durations_logged"], found["durations_estimated"]) == (3, 0)
    assert "durations are logged" in load_in_words(found)
    # The second begins when the first ends.
    assert load([0, 5], [5, 5])["max"] == 1
    # One whose duration is too short for the clock is in flight for no time.
    assert load([0, 1.8e9, 1.8e9 + 1], [1, 1e-9, 1])["busy_share"] == {"1": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_requests_of_many_users_are_a_poisson_process(seed) -> None:
    """The number in flight is then Poisson with mean rate x duration, however these are spread."""
    random = np.random.default_rng(seed)
    rate = random.uniform(1, 20)
    times = 1.8e9 + np.cumsum(random.exponential(1 / rate, 20_000))
    seconds = random.gamma(0.5, 1.0, 20_000)
    order = random.permutation(20_000)
    found = load(times[order], seconds[order])
    mean = rate * 0.5
    idle = poisson.pmf(0, mean)
    for size in (1, 2, int(mean) + 1, int(2 * mean) + 2):
        expected = (poisson.cdf(size, mean) - idle) / (1 - idle)
        assert busy_time_shares(found, [size])[size] == pytest.approx(expected, abs=0.04)
    sizes = [1, 3, 7]
    assert sum(busy_time_shares(found, sizes).values()) == pytest.approx(
        busy_time_shares(found, [7])[7]
    )


def test_durations_that_were_not_logged_are_estimated() -> None:
    nothing = [np.nan] * 3
    found = load([0, 1, 10], nothing, tokens=[100, 100, 200], tpot_ms=20)
    assert found["busy_share"] == {"1": round(6 / 7, 6), "2": round(1 / 7, 6)}
    assert "estimated from response tokens at 20 ms per token" in load_in_words(found)
    # At the log's own time per token where it has some.
    some = load([0, 1, 10], [2.0, np.nan, np.nan], tokens=[40, 40, 40], tpot_ms=20)
    assert (some["tpot_ms"], some["durations_logged"], some["durations_estimated"]) == (50, 1, 2)
    assert some["busy_share"] == {"1": 0.8, "2": 0.2}


def test_a_log_without_times_has_no_load() -> None:
    assert load([np.nan, np.nan, 5.0], [1, 1, 1]) is None
    assert load([], []) is None
    assert load_in_words(None) == ""


@pytest.mark.parametrize(
    ("quantiles", "sizes"),
    [
        ((1, 1, 1), [1]),
        ((1, 4, 9), [1, 4, 9]),
        ((8, 9, 32), [8, 32]),
        ((40, 45, 49), [40]),
        ((4, 5, 6), [4, 5]),
    ],
)
def test_sizes_to_measure(quantiles, sizes) -> None:
    assert measured_sizes(dict(zip(("p50", "p90", "p99"), quantiles, strict=True))) == sizes


def test_the_ingest_describes_the_load(text_target, tmp_path) -> None:
    rows = [
        pair(*conversation, timestamp=1_714_564_800 + index, latency_ms=2500)
        for index, conversation in enumerate(screenings(20))
    ]
    log = write_log(tmp_path / "log.jsonl", rows)
    summary = ingest(text_target, TrafficConfig(path=str(log)), tmp_path / "out", workers=0)
    # In the first and the last second one request, then two and three in turn.
    assert summary["load"]["max"] == 3 and summary["load"]["durations_logged"] == 20
    words = dict(traffic_facts(summary))["concurrency"]
    assert words.startswith("at most 2 / 3 / 3 requests in flight in 50 / 90 / 99 % of the busy")
