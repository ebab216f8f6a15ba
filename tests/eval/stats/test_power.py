"""Expected power against simulated evaluations and by hand."""

import math

import numpy as np
import pytest

from benchmarks.judge import trials_of
from benchmarks.simulated_endpoint import DEMO, STANDARD, Setting
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import clustered_estimate
from outrider.eval.stats.power import UNIT_NOISE, power, power_in_words, spread_of


def blocks_differ(random: np.random.Generator, count: int) -> np.ndarray:
    return UNIT_NOISE * random.standard_normal(count)


@pytest.mark.parametrize(
    ("sessions", "sizes", "effort"), [(30, (1,), DEMO), (15, (1,), STANDARD), (30, (8,), STANDARD)]
)
def test_simulated_evaluations_ship_as_often(
    sessions: int, sizes: tuple[int, ...], effort: dict[str, object]
) -> None:
    setting = Setting(
        speed=1.1,
        over_none=3.0,
        sizes=sizes,
        effort=effort,
        sessions=sessions,
        noise=blocks_differ,
        starts=0.005,
    )
    count = 80
    shipped = float(np.mean([trial.shipped for trial in trials_of(setting, count, seed=1)]))
    settings = EvalConfig(concurrency=[*sizes], **effort)
    expected = power(gain=0.1, sessions=sessions, settings=settings)
    # Three standard errors of the simulation, and 0.05 for what the formula neglects.
    assert abs(shipped - expected) < 3 * math.sqrt(0.25 / count) + 0.05
    assert 0.2 < expected < 0.95  # else a constant would pass


def test_without_a_gain_it_is_at_most_the_error_rate() -> None:
    settings = EvalConfig(concurrency=[1], **STANDARD)
    assert power(gain=0.0, sessions=30, settings=settings) < 0.025
    # Unknown users add the margin of three users who differ by 10 %.
    assert power(gain=0.1, sessions=10_000, settings=settings, unknown_users=True) < 0.5
    assert power(gain=0.1, sessions=10_000, settings=settings) > 0.9


def test_the_spread_between_sessions_is_read_from_an_interval() -> None:
    random = np.random.default_rng(0)
    sessions = 400
    steps_S = random.lognormal(4, 0.7, sessions)
    sums_S2 = np.stack([steps_S, steps_S * np.exp(0.1 * random.standard_normal(sessions))], axis=1)
    names = [str(session) for session in range(sessions)]
    ratio = clustered_estimate(sums_S2, names, lambda sums: sums[..., 1] / sums[..., 0])
    spread = spread_of(ratio, sessions)
    assert spread == pytest.approx(0.1, rel=0.15)
    none = ClusteredEstimate(value=1, low=None, high=None, observations=4, clusters=4, over="4")
    assert spread_of(none, 4) is None


def test_the_words_name_what_is_assumed_and_what_helps() -> None:
    settings = EvalConfig(concurrency=[1], **STANDARD)
    text = power_in_words(sessions=30, settings=settings)
    share = math.floor(10 * power(gain=0.1, sessions=30, settings=settings))
    assert text.startswith(f"30 held-out sessions: a true +10% over base is shown in about {share}")
    assert "with 60 sessions in" in text and "traffic.users" not in text
    assert "with logged users or traffic.users, in" in power_in_words(
        sessions=30, settings=settings, unknown_users=True
    )
