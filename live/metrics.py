"""Prometheus metrics of a live endpoint, from its journal and the canary's latest decision.

    metrics = LiveMetrics(endpoint)
    metrics.publish(journal.read())        # writes state_dir/metrics.prom

The file is for node_exporter's textfile collector. Counts come from the journal, so they survive a
restart. Labels are names, such as those of replicas, releases and outcomes, never request text.
vLLM itself exports request metrics. live/grafana/ and live/templates/ use these metric names.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outrider.live.endpoint_file import Endpoint
from outrider.live.state import DeploymentVerdict, State

VERDICTS = {"roll_back": -1, "wait": 0, "second_baseline": 0, "promote": 1}
"""Values of `outrider_canary_verdict`."""

PHASES = {"wait": "canary", "promote": "promoting", "roll_back": "rolling_back"}

METRICS = "metrics.prom"
"""File name in `state_dir`."""


Values = Mapping[tuple[str, ...], float | None]
"""Values by those of a metric's labels; unknown values are None."""


@dataclass(frozen=True)
class Measure:
    """A metric and its values, without the prefix `outrider_` and the label `endpoint`."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    """Without the suffix `_total` of counters."""
    text: str
    values: Values
    labels: tuple[str, ...] = ()


def gauge(name: str, text: str, values: Values, labels: tuple[str, ...] = ()) -> Measure:
    """A value that may rise and fall."""
    return Measure(GaugeMetricFamily, name=name, text=text, values=values, labels=labels)


def counter(name: str, text: str, values: Values, labels: tuple[str, ...] = ()) -> Measure:
    """A value that only rises."""
    return Measure(CounterMetricFamily, name=name, text=text, values=values, labels=labels)


def deployment_measures(state: State, verdict: DeploymentVerdict) -> list[Measure]:
    """All metrics of deployments; `verdict` is the canary's latest."""
    phase = PHASES[state.open.verdict.action] if state.open is not None else "idle"
    share = (state.share or 0) / 100
    served: Values = {(replica, release): 1.0 for replica, release in state.served.items()}
    outcomes: Values = {(outcome,): float(count) for outcome, count in state.counts.items()}
    decision = VERDICTS[verdict.action]
    return [
        gauge("controller_state", "1 for the phase", {(phase,): 1}, labels=("state",)),
        gauge(
            "replica_serving",
            "1 for the release that a replica got",
            served,
            labels=("replica", "version"),
        ),
        gauge("canary_share_ratio", "Share of the canary, 0 to 1", {(): share}),
        counter("deployments", "Finished deployments", outcomes, labels=("outcome",)),
        gauge(
            "canary_verdict",
            "Latest decision: 1 promote, 0 wait, -1 roll back",
            {(): decision},
        ),
        gauge("canary_ratio", "Canary / stable", _ratios(verdict), labels=("measure", "bound")),
    ]


def _ratios(verdict: DeploymentVerdict) -> dict[tuple[str, ...], float | None]:
    """The judge's canary / stable ratios, by measure and bound."""
    ratios: dict[tuple[str, ...], float | None] = {}
    figures = verdict.figures
    ratios["acceptance", "value"] = figures.get("acceptance")
    ratios["ttft", "value"] = figures.get("ttft")
    ratios["latency_p99", "value"] = figures.get("latency_p99")
    ratios["replica", "value"] = figures.get("replica")
    # Missing until both roles have enough sessions.
    for bound, value in zip(("value", "lower", "upper"), figures.get("speed", []), strict=False):
        ratios["speed", bound] = value
    return ratios


class LiveMetrics:
    """Writes the metrics of an endpoint's deployments."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._state = State()
        self._verdict = DeploymentVerdict("wait", "")

    def publish(self, state: State | None = None, verdict: DeploymentVerdict | None = None) -> None:
        """Writes the file for a new journal state or canary verdict."""
        self._state = state or self._state
        self._verdict = verdict or self._verdict
        write_metrics(self._endpoint, METRICS, deployment_measures(self._state, self._verdict))


def write_metrics(endpoint: Endpoint, name: str, metrics: Sequence[Measure]) -> None:
    """Writes a file of metrics to the endpoint's `state_dir`, atomically."""
    # Not the global registry, which has the metrics of this Python process.
    registry = CollectorRegistry()
    registry.register(_Families(endpoint, metrics))
    # Ignore errors, because a full disk must not stop a rollback; the next change writes again.
    with contextlib.suppress(OSError):
        write_to_textfile(str(endpoint.state_dir / name), registry)


@dataclass(frozen=True, eq=False)
class _Families:
    """A collector of prometheus_client: the metrics with the label `endpoint`."""

    endpoint: Endpoint
    metrics: Sequence[Measure]

    def collect(self) -> Iterator[Metric]:
        for measure in self.metrics:
            labels = ["endpoint", *measure.labels]
            family = measure.kind(f"outrider_{measure.name}", measure.text, labels=labels)
            for label_values, value in measure.values.items():
                if value is not None:
                    family.add_metric([self.endpoint.name, *label_values], value)
            yield family
