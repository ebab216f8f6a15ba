"""Metrics are the journal's counts and a canary's verdict, in Prometheus' own format."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outrider.common.errors import OutriderError
from outrider.live import metrics as live_metrics
from outrider.live.endpoint_file import Endpoint
from outrider.live.judge import Verdict
from outrider.live.metrics import LiveMetrics, reporting
from outrider.live.state import Entry, State, fold
from tests.live.simulated_windows import Story

TIMES = {"read_s": 0.1, "apply_s": 0.2, "stall_s": 0.4}
DEPLOYMENT = [
    ("adopt", {"release": "old", "directory": "/r"}),
    ("share", {"percent": 5.0}),
    ("begin", {"new": "new", "old": "old", "mode": "canary"}),
    ("refused_swap", {"replica": "one"}),
    ("swapped", {"replica": "one", "release": "new", **TIMES}),
    ("reverted", {"replica": "one", "release": "new", "reason": ""}),
]
ENDED = [
    ("verdict", {"action": "promote", "reason": "", "by": "judge", "figures": {}}),
    ("end", {"outcome": "promoted", "serving": "new", "behind": []}),
]
VERDICT = Verdict(
    "promote",
    "",
    figures={"speed": [1.1, 0.98, None], "acceptance": 1.2, "canary_requests": 20, "ttft": None},
)


def state(*events) -> State:
    return fold(Entry(n, float(n), event, facts) for n, (event, facts) in enumerate(events, 1))


def story() -> Story:
    """A loop of adaptation that lost a round and won one."""
    story = Story(np.random.default_rng(0))
    story.window()
    story.window()
    story.round(ships=False)
    story.round(ships=True, release="r1")
    story.window(release="r1")
    story.window(-0.1, release="r1")
    return story


def values(metrics: LiveMetrics) -> dict[tuple[str, ...], float]:
    """(name, label values without the endpoint) -> value."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "endpoint"]
            assert sample.labels["endpoint"] == "resume"
            found[sample.name.removeprefix("outrider_"), *labels] = sample.value
    return found


def test_a_deployment_is_counted_from_the_journal() -> None:
    metrics = LiveMetrics("resume")
    assert values(metrics)["deployments_total", "rolled_back"] == 0  # there from the beginning
    metrics.publish(state(*DEPLOYMENT))
    found = values(metrics)
    assert found["controller_state", "canary"] == 1 and found["canary_share_ratio",] == 0.05
    assert found["replica_serving", "one", "new"] == 1
    for outcome in ("applied", "refused", "reverted"):
        assert found["swaps_total", outcome, "one"] == 1
    metrics.publish(state(*DEPLOYMENT, *ENDED))
    found = values(metrics)
    assert found["controller_state", "idle"] == 1 and found["deployments_total", "promoted"] == 1


def test_the_verdict_of_a_canary_and_its_figures() -> None:
    metrics = LiveMetrics("resume")
    assert values(metrics)["canary_verdict",] == 0
    metrics.decided(VERDICT)
    found = values(metrics)
    assert found["canary_verdict",] == 1 and found["canary_test", "canary_requests"] == 20
    ratios = {key[1:]: value for key, value in found.items() if key[0] == "canary_ratio"}
    assert ratios == {
        ("value", "speed"): 1.1,
        ("lower", "speed"): 0.98,
        ("value", "acceptance"): 1.2,
    }


def test_windows_rounds_and_gpu_time_are_counted() -> None:
    metrics, loop = LiveMetrics("resume"), story().state
    metrics.publish(loop)
    found = values(metrics)
    assert found["window_tokens_per_step",] == loop.usable[-1].acceptance.value
    assert found["window_over_base_ratio",] == loop.usable[-1].ratio.value
    assert found["window_fall_ratio",] == pytest.approx(
        loop.usable[-1].ratio.value / loop.usable[-2].ratio.value
    )
    assert found["rounds_total", "promoted"] == found["rounds_total", "lost"] == 1
    assert found["round_running",] == 0 and found["adapt_gpu_seconds_total",] == 4


def test_served_on_the_loopback_interface_and_written_to_a_file(tmp_path: Path) -> None:
    replicas = [{"name": "a", "data": "unix:/a", "admin": "unix:/b"}]
    folder = tmp_path / "state"
    endpoint = Endpoint.model_validate(
        {"name": "resume", "state_dir": folder, "replicas": replicas}
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with reporting(endpoint, port):
        assert "outrider_canary_verdict" in (folder / "metrics.prom").read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"outrider_canary_verdict" in answer.read()
        with pytest.raises(OutriderError, match=f"port {port} of 127.0.0.1 cannot be used"):
            reporting(endpoint, port).__enter__()
    LiveMetrics("resume", tmp_path / "gone" / "metrics.prom").publish(State())  # stops nothing


def test_the_dashboard_shows_metrics_that_exist() -> None:
    metrics, loop = LiveMetrics("resume"), story().state
    for event, facts in [*DEPLOYMENT, *ENDED]:
        loop.add(Entry(1, 1.0, event, facts))
    metrics.publish(loop)
    metrics.decided(VERDICT)
    exist = {f"outrider_{key[0]}" for key in values(metrics)}
    page = (Path(live_metrics.__file__).parent / "grafana" / "live_endpoint.json").read_text()
    shown = set(re.findall(r"outrider_\w+", page))
    assert len(shown) > 10 and not shown - exist
    assert len({panel["id"] for panel in json.loads(page)["panels"]}) > 10
