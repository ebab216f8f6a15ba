"""Metrics are the journal's counts and a canary's requests, in Prometheus' own format."""

import json
import re
import stat
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outrider.common.errors import OutriderError
from outrider.live import metrics as live_metrics
from outrider.live.judge import Decision
from outrider.live.metrics import LiveMetrics
from outrider.live.state import Entry, State, fold
from outrider.live.traffic import Observation
from tests.live.test_adapt_policy import Story

DEPLOYMENT = [
    ("adopt", {"release": "old", "directory": "/r"}),
    ("share", {"percent": 5.0}),
    ("begin", {"new": "new", "old": "old", "mode": "canary"}),
    ("refused_swap", {"replica": "one"}),
    (
        "swapped",
        {"replica": "one", "release": "new", "read_s": 0.1, "apply_s": 0.2, "stall_s": 0.4},
    ),
    ("reverted", {"replica": "one", "release": "new", "reason": ""}),
    ("recover", {}),
]
ENDED = [
    ("verdict", {"action": "promote", "reason": "", "by": "judge", "figures": {}}),
    ("end", {"outcome": "promoted", "serving": "new", "behind": []}),
]


def state(*events) -> State:
    return fold(Entry(n, float(n), event, facts) for n, (event, facts) in enumerate(events, 1))


def story() -> Story:
    """A loop of adaptation that lost a round and won one."""
    story = Story()
    story.window(4.0)
    story.window(3.0)
    story.round(ships=False)
    story.window(3.0)
    story.round(ships=True, release="r1", length=5.0)
    story.window(4.5, release="r1")
    return story


def complete(metrics: LiveMetrics) -> None:
    """Every metric has a value."""
    loop = story().state
    for event, facts in [*DEPLOYMENT, *ENDED]:
        loop.add(Entry(1, 1.0, event, facts))
    metrics.publish(loop)
    ok = Observation("a", "a", 0.0, 2.0, False, 21, 10, 20, 0.2, 1.0)
    failed = Observation("b", "b", 0.0, 2.0, True, 5, 2, 1)
    decision = Decision("promote", "", {"speed": [1.1, 0.98, None]})
    metrics.observed("canary", [ok, failed], decision)
    metrics.observed("stable", [ok], decision)


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
    assert found["swap_seconds_sum", "stall"] == 0.4 and found["swap_seconds_count", "read"] == 1
    assert found["recoveries_total",] == 1
    metrics.publish(state(*DEPLOYMENT, *ENDED))
    found = values(metrics)
    assert found["controller_state", "idle"] == 1 and found["deployments_total", "promoted"] == 1


def test_requests_and_the_decision_of_a_canary() -> None:
    metrics = LiveMetrics("resume")
    complete(metrics)
    found = values(metrics)
    assert (
        found["requests_total", "canary", "ok"] == found["requests_total", "canary", "failed"] == 1
    )
    assert found["accepted_tokens_total", "canary"] == 21 and found["drafts_total", "canary"] == 12
    # 20 tokens after the first one in a second; a failed request has no times.
    assert found["request_tokens_per_second_sum", "canary"] == 20
    assert found["ttft_seconds_count", "canary"] == 1
    assert found["canary_verdict",] == 1 and found["canary_ratio", "lower", "speed"] == 0.98
    assert ("canary_ratio", "upper", "speed") not in found  # not known


def test_windows_rounds_and_gpu_time_are_counted() -> None:
    metrics, loop = LiveMetrics("resume"), story().state
    metrics.publish(loop)
    found = values(metrics)
    assert found["window_tokens_per_step",] == loop.usable[-1].acceptance.value
    assert found["reference_tokens_per_step",] == pytest.approx(loop.rounds[-1].custom.value)
    assert found["log_exchanges_total", "accepted"] == 4 * 90
    assert found["log_exchanges_total", "rejected"] == 4 * 10
    assert found["log_lag_bytes",] == 700 and found["round_running",] == 0
    assert found["rounds_total", "promoted"] == found["rounds_total", "lost"] == 1
    assert found["adapt_gpu_seconds_total",] == 4


def test_served_on_the_loopback_interface_only() -> None:
    metrics = LiveMetrics("resume")
    with metrics.served(0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"outrider_canary_verdict" in answer.read()
        with (
            pytest.raises(OutriderError, match=f"port {port} of 127.0.0.1 cannot be used"),
            metrics.served(port),
        ):
            pass


def test_the_text_file_is_whole_and_a_broken_one_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    LiveMetrics("resume", file).publish(state(*DEPLOYMENT))
    assert "outrider_canary_share_ratio" in file.read_text() and stat.S_ISREG(file.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]
    LiveMetrics("resume", tmp_path / "gone" / "metrics.prom").publish(state(*DEPLOYMENT))


def test_the_dashboard_shows_metrics_that_exist() -> None:
    metrics = LiveMetrics("resume")
    complete(metrics)
    exist = {f"outrider_{key[0]}" for key in values(metrics)}
    page = (Path(live_metrics.__file__).parent / "grafana" / "live_endpoint.json").read_text()
    shown = set(re.findall(r"outrider_\w+", page))
    assert len(shown) > 15 and not shown - exist
    assert len({panel["id"] for panel in json.loads(page)["panels"]}) > 15
