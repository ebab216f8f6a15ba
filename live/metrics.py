"""Prometheus metrics of a live endpoint, from its journal and the canary's latest decision.

    metrics = LiveMetrics(endpoint)
    metrics.publish(journal.read())        # writes state_dir/metrics.prom

The file is for node_exporter's textfile collector. Counts come from the journal, so they survive a
restart. Labels are names, such as those of replicas, releases and outcomes, never request text.
vLLM itself exports request metrics. live/grafana/ and live/templates/ use these metric names.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outrider.live.adapt_policy import newest_fall
from outrider.live.endpoint_file import Endpoint
from outrider.live.state import State, Verdict

VERDICTS = {"roll_back": -1, "wait": 0, "promote": 1}
"""Values of `outrider_canary_verdict`."""

PHASES = {"wait": "canary", "promote": "promoting", "roll_back": "rolling_back"}

METRICS = "metrics.prom"
"""File name in `state_dir`."""

Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


def measures(
    state: State, verdict: Verdict
) -> list[tuple[Kind, str, str, list[str], Mapping[Any, float | None]]]:
    """All metrics, without the label `endpoint`; `verdict` is the canary's latest.

    Each has a kind, name, help text, label names, and values by label; unknown values are None.
    """
    gauge, count = GaugeMetricFamily, CounterMetricFamily
    phase = PHASES[state.open.verdict.action] if state.open is not None else "idle"
    ended = {(name,): state.counts[name] for name in ("promoted", "rolled_back")}
    bounds = zip(("value", "lower", "upper"), verdict.figures.get("speed", ()), strict=False)
    ratios: dict[Any, float | None] = {("speed", bound): value for bound, value in bounds}
    for name in ("acceptance", "ttft", "latency_p99", "replica"):
        ratios[name, "value"] = verdict.figures.get(name)
    newest = state.usable[-1] if state.usable else None
    length = newest.acceptance.value if newest and newest.acceptance else None
    ratio = newest.ratio.value if newest and newest.ratio else None
    fall = newest_fall(state, newest.release, min_drop=0.0) if newest else None
    outcomes = [each.outcome or "lost" for each in state.rounds if each.settled]
    rounds = {(name,): outcomes.count(name) for name in set(outcomes)}
    return [
        (gauge, "controller_state", "1 for the phase", ["state"], {(phase,): 1}),
        (gauge, "replica_serving", "1 for the release that a replica got", ["replica", "version"],
         dict.fromkeys(state.served.items(), 1)),
        (gauge, "canary_share_ratio", "Share of the canary, 0 to 1", [],
         {(): (state.share or 0) / 100}),
        (count, "deployments", "Finished deployments", ["outcome"], ended),
        (gauge, "canary_verdict", "Latest decision: 1 promote, 0 wait, -1 roll back", [],
         {(): VERDICTS[verdict.action]}),
        (gauge, "canary_ratio", "Canary / stable", ["measure", "bound"], ratios),
        (gauge, "window_tokens_per_step", "Acceptance length, newest window", [], {(): length}),
        (gauge, "window_over_base_ratio", "Acceptance length over the base's, newest window", [],
         {(): ratio}),
        (gauge, "window_fall_ratio", "Ratio to the base, last windows over earlier ones",
         [], {(): fall.value if fall else None}),
        (count, "rounds", "Finished training rounds", ["outcome"], rounds),
        (gauge, "round_running", "1 while a round is under way", [],
         {(): float(state.pending_round is not None)}),
        (count, "adapt_gpu_seconds", "GPU time of adaptation", [],
         {(): sum(seconds for _, seconds in state.spent)}),
    ]  # fmt: skip


class LiveMetrics:
    """Writes the metrics of one endpoint to a text file."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._state = State()
        self._verdict = Verdict("wait", "")
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics, for the registry."""
        for kind, name, text, labels, values in measures(self._state, self._verdict):
            family = kind(f"outrider_{name}", text, labels=["endpoint", *labels])
            for key, value in values.items():
                if value is not None:
                    family.add_metric([self._endpoint.name, *key], value)
            yield family

    def publish(self, state: State | None = None, verdict: Verdict | None = None) -> None:
        """Writes the file for a new journal state or canary verdict."""
        self._state = state or self._state
        self._verdict = verdict or self._verdict
        # Ignore errors, because a full disk must not stop a rollback; the next change writes again.
        with contextlib.suppress(OSError):
            write_to_textfile(str(self._endpoint.state_dir / METRICS), self._registry)
