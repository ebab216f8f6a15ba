"""The same speculator on newer traffic: significant changes, and chance."""

import math

import numpy as np
import pytest
from datasets import Dataset

from outrider.eval.report.drift import change, heldout_time, history
from outrider.eval.report.past_run import PastEstimate, PastRun
from outrider.eval.results.report import HeldoutTime
from outrider.eval.stats.clusters import clustered
from tests.eval.sample_history import SPREAD, estimate, report, write_sample_history


def parsed(*reports):
    return [PastRun.model_validate(each) for each in reports]


def past(value):
    return PastEstimate.model_validate(estimate(value))


def test_a_speculator_is_followed_in_time_whatever_the_order():
    runs = {
        "june": report(90, 2.0, 2.4),
        "march": report(0, 2.0, 3.0),
        "april": report(30, 2.0, 3.01),
        "may": report(60, 1.7, 2.55),
        "other": report(60, 2.0, 3.0, speculator={"weights_sha256": "cd" * 32}),
    }
    (series,) = history(list(runs), parsed(*runs.values()))
    assert series.weights == "ab" * 32
    assert [point.run for point in series.points] == ["march", "april", "may", "june"]
    readings = [point.reading for point in series.points]
    assert readings[0] == "" and series.points[0].change is None
    assert readings[1].startswith("no significant change (× 1.003")
    assert readings[2].startswith("the traffic is harder to draft, for base as well (× 0.850")
    assert readings[3].startswith("drifts away: it gains less over base (× 0.800")
    assert series.points[1].time.startswith("2025-11-08")


def test_what_was_measured_otherwise_is_not_compared():
    first, second = report(0, 2.0, 3.0), report(1, 2.0, 2.0, k={"base": 2, "custom": 2})
    (series,) = history(["a", "b"], parsed(first, second))
    assert series.points[1].change is None
    assert series.points[1].reading == "not comparable, another k"
    del first["heldout_time"]
    (series,) = history(["b", "a"], parsed(second, first))
    assert [point.run for point in series.points] == ["b", "a"]  # as given
    assert series.points[1].time == "not logged"


def test_chance_is_shared_among_the_runs():
    # z of about 2.1: beyond chance as the only comparison, not as one of three.
    error = math.log1p(SPREAD) / 1.959964 * math.sqrt(2)
    later = past(math.exp(2.1 * error))
    assert change(past(1.0), later, 1).p_value == pytest.approx(0.0357, abs=2e-4)
    assert (
        change(past(1.0), later, 1).beyond_chance and not change(past(1.0), later, 3).beyond_chance
    )
    fixed = PastEstimate(value=1.0, low=1.0, high=1.0)
    assert not change(fixed, fixed, 1).beyond_chance
    assert change(fixed, PastEstimate(value=2.0, low=2.0, high=2.0), 1).beyond_chance


def test_an_unchanged_speculator_seldom_changes():
    """Runs from one population, with intervals over sessions: five in a hundred are significant."""
    random, found = np.random.default_rng(0), []

    def run():
        tokens = random.integers(50, 400, 80)
        steps = tokens / random.normal(2.5, 0.4, 80).clip(1)
        sums = np.stack([tokens, steps], axis=1)
        drawn = clustered(sums, [*range(80)], lambda s: s[..., 0] / s[..., 1])
        return PastEstimate.model_validate(drawn.as_dict())

    for _ in range(200):
        found.append(change(run(), run(), 1).beyond_chance)
    assert 2 <= sum(found) <= 24


def test_rows_without_a_logged_time_have_none():
    assert heldout_time(Dataset.from_dict({"time": [None, None]})) is None
    assert heldout_time(Dataset.from_dict({"session": ["a"]})) is None
    some = Dataset.from_dict({"time": [1.7e9, None, 1.6e9]})
    assert heldout_time(some) == HeldoutTime(first=1.6e9, last=1.7e9)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_sample_history(tmp_path_factory.mktemp("history"))


def test_page_and_terminal_say_what_changed(page):
    path, terminal = page
    html = path.read_text()
    for form in (html, terminal):
        assert (
            "drifts away: it gains less over base" in form
            and "abababababab" in form
            and "cdcdcd" not in form
        )
    assert "&lt;i&gt;june" in html and "<i>june" not in html and html.count("<svg") == 1


def test_the_page_has_the_workloads(page):
    path, _ = page
    html = path.read_text()
    assert (
        html.index("<h2>Workloads</h2>")
        < html.index("on newer traffic")
        < html.index("<h2>Side by side</h2>")
    )
    assert "none&#39;s GPU time saved" in html
    assert html.count("<td>eager, concurrency 1</td>") == 3
