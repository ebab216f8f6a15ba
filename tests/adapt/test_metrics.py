"""Metrics of adaptation, and the dashboard, which shows these and those of deployments."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from outrider.adapt.metrics import METRICS, adaptation_measures, metrics_publisher
from outrider.live import metrics as live_metrics
from outrider.live.state import DeploymentVerdict, State
from tests.adapt.simulated_windows import Story
from tests.live.test_metrics import values


def test_adaptation_is_counted_from_the_journal(make_world) -> None:
    endpoint = make_world().endpoint
    story = Story(np.random.default_rng(0))
    story.window()
    story.window()
    story.round(ships=False)
    story.round(ships=True)
    story.window(release="r1")
    story.window(-0.1, release="r1")
    metrics_publisher(endpoint)(story.state)
    newest = story.state.usable[-1]
    before = story.state.usable[-2]
    assert values(endpoint.state_dir / METRICS) == {
        ("window_tokens_per_step",): newest.acceptance.value,
        ("window_over_base_ratio",): newest.ratio.value,
        ("window_fall_ratio",): pytest.approx(newest.ratio.value / before.ratio.value),
        ("rounds_total", "promoted"): 1,
        ("rounds_total", "lost"): 1,
        ("round_running",): 0,
        ("adapt_gpu_seconds_total",): 4,
    }


def test_the_dashboard_shows_metrics_that_exist() -> None:
    deployments = live_metrics.deployment_measures(State(), DeploymentVerdict("wait", ""))
    written = {
        f"outrider_{measure.name}"
        for measure in [*deployments, *adaptation_measures(Story(np.random.default_rng(0)).state)]
    }
    page = (Path(live_metrics.__file__).parent / "grafana" / "live_endpoint.json").read_text()
    shown = {name.removesuffix("_total") for name in re.findall(r"outrider_\w+", page)}
    assert len(shown) > 9 and shown <= written
    assert len({panel["id"] for panel in json.loads(page)["panels"]}) > 9
