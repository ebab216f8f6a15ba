"""Metrics and the structured log: every event, by Prometheus' own parser."""

import dataclasses
import io
import json
import math
import stat
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outrider.common.errors import OutriderError
from outrider.live.event_log import WITHHELD, event_log
from outrider.live.metrics import LiveMetrics

CANARY = "Kanarienvogel singt"
"""What a customer wrote: more than a name."""


@dataclasses.dataclass(frozen=True)
class Request:
    """As eval.live's Observation, with text in its session."""

    completion_tokens: int
    drafts: int
    accepted: int
    ttft_s: float | None = 0.2
    decode_s: float | None = 1.0
    failed: bool = False
    session: str = CANARY


def text_of(metrics: LiveMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def values(metrics: LiveMetrics) -> dict[tuple[str, ...], float]:
    """(name, label values without the endpoint) -> value."""
    found = {}
    for family in text_string_to_metric_families(text_of(metrics)):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "endpoint"]
            if "endpoint" in sample.labels:
                assert sample.labels["endpoint"] == "resume"
            found[sample.name, *labels] = sample.value
    return found


def all_events(metrics: LiveMetrics, text: str = "name") -> None:
    """Calls every event, with `text` wherever one is taken."""
    metrics.state(text)
    metrics.serving(text, text)
    metrics.share(5)
    metrics.swapped(text, 0.1, 0.2, 0.4)
    metrics.swap_refused(text)
    metrics.swap_reverted(text)
    metrics.deployment_started()
    metrics.observed("canary", [Request(21, 10, 20), Request(5, 2, 1, failed=True)])
    metrics.observed("stable", [Request(41, 20, 20)])
    metrics.decided("promote", {"speed": (0.98, 1.2), text: (0.0, math.inf)})
    metrics.deployment_finished("promoted")
    metrics.recovered()
    metrics.log_read(10, 1, 4096)
    metrics.window(2.5, reference=3.0, drift=0.2)
    metrics.round_started()
    metrics.round_finished("lost", 90.0)
    metrics.budget(1.5)


def test_events_are_counted() -> None:
    metrics = LiveMetrics("resume")
    all_events(metrics)
    found = values(metrics)
    assert found["outrider_canary_share_ratio",] == 0.05
    assert found["outrider_swaps_total", "applied", "name"] == 1
    assert found["outrider_swap_seconds_sum", "stall"] == 0.4
    assert found["outrider_requests_total", "canary", "ok"] == 1
    assert found["outrider_requests_total", "canary", "failed"] == 1
    assert found["outrider_accepted_tokens_total", "canary"] == 21
    assert found["outrider_drafts_total", "canary"] == 12
    # 40 tokens after the first one in a second.
    assert found["outrider_request_tokens_per_second_sum", "stable"] == 40
    # A failed request has no latency.
    assert found["outrider_ttft_seconds_count", "canary"] == 1
    assert found["outrider_canary_verdict",] == 1
    assert found["outrider_canary_ratio", "lower", "speed"] == 0.98
    assert ("outrider_canary_ratio", "upper", "name") not in found  # infinite
    assert found["outrider_deployments_total", "promoted"] == 1
    assert found["outrider_deployments_total", "rolled_back"] == 0  # there from the beginning
    assert found["outrider_rounds_total", "lost"] == 1
    assert found["outrider_round_running",] == 0
    assert found["outrider_log_lag_bytes",] == 4096


def test_one_state_and_one_release_per_replica_at_a_time() -> None:
    metrics = LiveMetrics("resume")
    for name in ("canary", "promoting"):
        metrics.state(name)
    metrics.serving("one", None)
    metrics.serving("two", "aaaaaaaaaaaa")
    metrics.serving("one", "bbbbbbbbbbbb")
    found = values(metrics)
    states = [key for key in found if key[0] == "outrider_controller_state"]
    assert states == [("outrider_controller_state", "promoting")]
    serving = {key[1:] for key in found if key[0] == "outrider_replica_serving"}
    assert serving == {("one", "bbbbbbbbbbbb"), ("two", "aaaaaaaaaaaa")}


def test_a_new_deployment_forgets_the_last_verdict() -> None:
    metrics = LiveMetrics("resume")
    metrics.decided("roll_back", {"speed": (0.8, 0.9)})
    assert values(metrics)["outrider_canary_verdict",] == -1
    metrics.deployment_started()
    found = values(metrics)
    assert found["outrider_canary_verdict",] == 0
    assert not [key for key in found if key[0] == "outrider_canary_ratio"]


def test_no_text_reaches_metrics_or_log() -> None:
    stream = io.StringIO()
    log = event_log(stream, "resume")
    metrics = LiveMetrics("resume", log=log)
    all_events(metrics, text=CANARY)
    log("anything", note=CANARY, nested={"a": [CANARY], CANARY: 1}, thing=Request(1, 1, 1))
    assert "Kanarienvogel" not in text_of(metrics)
    assert WITHHELD in text_of(metrics)
    assert "Kanarienvogel" not in stream.getvalue()
    assert WITHHELD in stream.getvalue()


def test_the_log_has_one_json_object_per_event() -> None:
    stream = io.StringIO()
    metrics = LiveMetrics("resume", log=event_log(stream, "resume"))
    all_events(metrics)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in stream.getvalue().splitlines()]
    assert {line["endpoint"] for line in lines} == {"resume"}
    assert all(line["timestamp"].endswith("Z") for line in lines)
    by_event = {line["event"]: line for line in lines}
    assert by_event["swapped"]["stall_s"] == 0.4
    assert by_event["decided"]["ratios"]["speed"] == [0.98, 1.2]


def test_waiting_is_logged_once() -> None:
    stream = io.StringIO()
    metrics = LiveMetrics("resume", log=event_log(stream, "resume"))
    for high in (1.5, 1.4, 1.3):
        metrics.decided("wait", {"speed": (0.9, high)})
    metrics.decided("promote", {"speed": (0.98, 1.2)})
    actions = [json.loads(line)["action"] for line in stream.getvalue().splitlines()]
    assert actions == ["wait", "promote"]
    assert values(metrics)["outrider_canary_ratio", "upper", "speed"] == 1.2


def test_served_on_the_loopback_interface_only() -> None:
    with LiveMetrics("resume", port=0) as metrics:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            assert b"outrider_canary_verdict" in answer.read()
        with pytest.raises(OutriderError, match=f"port {metrics.port}"):
            LiveMetrics("resume", port=metrics.port)


def test_the_text_file_is_whole_and_a_broken_one_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    metrics = LiveMetrics("resume", textfile=file)
    metrics.share(25)
    assert "outrider_canary_share_ratio" in file.read_text()
    assert stat.S_ISREG(file.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]
    gone = tmp_path / "gone" / "metrics.prom"
    stream = io.StringIO()
    broken = LiveMetrics("resume", textfile=gone, log=event_log(stream, "resume"))
    stream.close()
    broken.share(25)  # neither file nor log
    assert values(broken)["outrider_canary_share_ratio",] == 0.25
