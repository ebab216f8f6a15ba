"""Metrics are the journal's counts and a canary's verdict, in Prometheus' own format."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from outrider.live.journal import Entry
from outrider.live.metrics import METRICS, LiveMetrics
from outrider.live.state import DeploymentVerdict, State


def values(path: Path) -> dict[tuple[str, ...], float]:
    """(name, label values without the endpoint) -> value."""
    values = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "endpoint"]
            assert sample.labels["endpoint"] == "small"
            values[sample.name.removeprefix("outrider_"), *labels] = sample.value
    return values


def test_deployments_are_counted_from_the_journal(world) -> None:
    metrics = LiveMetrics(world.endpoint)
    folder = world.endpoint.state_dir
    state = State()
    for event, facts in (
        ("adopt", {"release": "old", "directory": "/r"}),
        ("share", {"percent": 5.0}),
        ("begin", {"new": "new", "old": "old", "mode": "canary"}),
        ("swapped", {"replica": "one", "release": "new"}),
    ):
        state = state.add(Entry(0, 0.0, event, facts))
    figures = {"speed": [1.1, 0.98, None], "acceptance": 1.2, "ttft": None}
    metrics.publish(state, DeploymentVerdict("promote", "", "judge", figures))
    assert values(folder / METRICS) == {
        ("controller_state", "canary"): 1,
        ("replica_serving", "one", "new"): 1,
        ("canary_share_ratio",): 0.05,
        ("deployments_total", "promoted"): 0,
        ("deployments_total", "rolled_back"): 0,
        ("canary_verdict",): 1,
        ("canary_ratio", "value", "speed"): 1.1,
        ("canary_ratio", "lower", "speed"): 0.98,
        ("canary_ratio", "value", "acceptance"): 1.2,
    }
    for event, facts in (
        ("verdict", {"action": "promote", "reason": "", "by": "judge", "figures": {}}),
        ("end", {"outcome": "promoted", "serving": "new", "behind": []}),
    ):
        state = state.add(Entry(0, 0.0, event, facts))
    metrics.publish(state)
    after = values(folder / METRICS)
    assert after["controller_state", "idle"] == 1 and after["deployments_total", "promoted"] == 1
    (folder / METRICS).unlink()
    folder.rmdir()
    metrics.publish(state)  # a disk that cannot be written stops nothing
