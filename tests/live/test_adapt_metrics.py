"""The metrics of a loop are those of its journal."""

import pytest

from outrider.live.adapt_metrics import AdaptMetrics
from outrider.pipeline.recipe.adapt_config import AdaptConfig
from tests.live.test_adapt_policy import Story

pytest.importorskip("prometheus_client")


def values(metrics):
    """Name and labels of each sample, without the endpoint's, to its value."""
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "endpoint"]
            found[" ".join([sample.name.removeprefix("outrider_"), *labels])] = sample.value
    return found


def told(story, policy, already=0):
    from outrider.live.metrics import LiveMetrics

    with LiveMetrics("resume") as metrics:
        follow = AdaptMetrics(metrics, policy, 10, story.entries[:already], clock=lambda: 100.0)
        for entry in story.entries[already:]:
            follow(entry)
        return values(metrics)


def test_windows_rounds_and_the_budget_are_counted():
    story = Story()
    story.window(4.0, seconds=100.0)
    story.window(3.0, seconds=100.0)
    story.round(ships=False)
    story.window(3.0, seconds=100.0)
    story.round(ships=True, release="r1", length=5.0)
    story.window(4.5, release="r1", seconds=60.0)
    found = told(story, AdaptConfig(gpu_hours_per_day=2.0))
    newest = story.state.usable[-1].acceptance.value
    released = story.state.rounds[-1].custom.value
    assert found["window_tokens_per_step"] == newest
    assert found["reference_tokens_per_step"] == pytest.approx(released)
    assert found["drift_score"] == pytest.approx(1 - newest / released)
    assert found["log_exchanges_total accepted"] == 4 * 90
    assert found["log_exchanges_total rejected"] == 4 * 10
    assert found["log_lag_bytes"] == 700
    assert found["rounds_total shipped"] == 1 and found["rounds_total failed"] == 1
    assert found["round_running"] == 0
    assert found["budget_gpu_hours"] == pytest.approx(2.0 - 360 * 10 / 3600)


def test_what_an_earlier_process_did_is_known_and_not_counted_again():
    story = Story()
    story.window(4.0)
    story.window(4.0)
    found = told(story, AdaptConfig(), already=2)
    assert found["log_exchanges_total accepted"] == 90
    assert "reference_tokens_per_step" in found
