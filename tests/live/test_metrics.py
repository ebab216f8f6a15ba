"""Metrics are the journal's counts and a canary's verdict, in Prometheus' own format."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.live import metrics as live_metrics
from outrider.live.metrics import METRICS, LiveMetrics
from outrider.live.state import Verdict
from tests.live.simulated_windows import Story


def values(folder: Path) -> dict[tuple[str, ...], float]:
    """(name, label values without the endpoint) -> value."""
    found = {}
    for family in text_string_to_metric_families((folder / METRICS).read_text()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "endpoint"]
            assert sample.labels["endpoint"] == "small"
            found[sample.name.removeprefix("outrider_"), *labels] = sample.value
    return found


def test_deployments_and_adaptation_are_counted_from_the_journal_and_shown(world) -> None:
    metrics = LiveMetrics(world.endpoint)
    folder = world.endpoint.state_dir
    story = Story(np.random.default_rng(0))
    story.window()
    story.window()
    story.round(ships=False)
    story.round(ships=True)
    story.window(release="r1")
    story.window(-0.1, release="r1")
    story.add("adopt", release="old", directory="/r")
    story.add("share", percent=5.0)
    story.add("begin", new="new", old="old", mode="canary")
    story.add("swapped", replica="one", release="new")
    figures = {"speed": [1.1, 0.98, None], "acceptance": 1.2, "ttft": None}
    metrics.publish(story.state, Verdict("promote", "", "judge", figures))
    found = values(folder)
    newest = story.state.usable[-1]
    before = story.state.usable[-2]
    assert found == {
        ("controller_state", "canary"): 1,
        ("replica_serving", "one", "new"): 1,
        ("canary_share_ratio",): 0.05,
        ("deployments_total", "promoted"): 0,
        ("deployments_total", "rolled_back"): 0,
        ("canary_verdict",): 1,
        ("canary_ratio", "value", "speed"): 1.1,
        ("canary_ratio", "lower", "speed"): 0.98,
        ("canary_ratio", "value", "acceptance"): 1.2,
        ("window_tokens_per_step",): newest.acceptance.value,
        ("window_over_base_ratio",): newest.ratio.value,
        ("window_fall_ratio",): pytest.approx(newest.ratio.value / before.ratio.value),
        ("rounds_total", "promoted"): 1,
        ("rounds_total", "lost"): 1,
        ("round_running",): 0,
        ("adapt_gpu_seconds_total",): 4,
    }
    page = (Path(live_metrics.__file__).parent / "grafana" / "live_endpoint.json").read_text()
    shown = set(re.findall(r"outrider_\w+", page))
    assert len(shown) > 9 and not shown - {f"outrider_{key[0]}" for key in found}
    assert len({panel["id"] for panel in json.loads(page)["panels"]}) > 9
    story.add("verdict", action="promote", reason="", by="judge", figures={})
    story.add("end", outcome="promoted", serving="new", behind=[])
    metrics.publish(story.state)
    found = values(folder)
    assert found["controller_state", "idle"] == 1 and found["deployments_total", "promoted"] == 1
    (folder / METRICS).unlink()
    folder.rmdir()
    metrics.publish(story.state)  # a disk that cannot be written stops nothing
