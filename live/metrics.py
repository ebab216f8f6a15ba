"""Prometheus metrics of a live endpoint, from its journal and the canary's latest decision.

    with reporting(endpoint, port=9464) as metrics:
        deploy_bundle(bundle, endpoint, metrics=metrics)

Counts are the journal's, so they continue where an earlier process ended. Labels are names of
replicas, releases and outcomes, never text of a request; vLLM has the metrics of requests. Served
on the loopback interface only; `state_dir/metrics.prom` is for node_exporter's textfile collector.
The dashboard in live/grafana/ and the manifests in live/templates/ read these names.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outrider.common.errors import OutriderError
from outrider.live.adapt_policy import newest_fall
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import read_journal
from outrider.live.judge import Verdict
from outrider.live.state import State, fold

VERDICTS = {"roll_back": -1, "wait": 0, "promote": 1}
"""Values of `outrider_canary_verdict`."""

METRICS = "metrics.prom"
"""In `state_dir`."""

Values = Mapping[Any, float | None]
"""Tuple of the labels' values -> value; None where it is not known."""


class LiveMetrics:
    """The metrics of one process."""

    def __init__(self, endpoint: str, textfile: Path | None = None) -> None:
        """`textfile`: where the metrics are written after each change."""
        self.registry = CollectorRegistry()
        self._endpoint, self._textfile, self._state = endpoint, textfile, State()
        self._verdict = Verdict("wait", "")
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All metrics; Prometheus calls it at each scrape."""
        yield from self._deployments(self._state)
        yield from self._canary(self._verdict)
        yield from self._adaptation(self._state)

    def _deployments(self, state: State) -> Iterator[Metric]:
        yield self._gauge("controller_state", "1 for the phase", {(state.phase,): 1}, "state")
        served = dict.fromkeys(state.served.items(), 1)
        text = "1 for the release that a replica got"
        yield self._gauge("replica_serving", text, served, "replica", "version")
        share = (state.share or 0) / 100
        yield self._gauge("canary_share_ratio", "Share of the canary, 0 to 1", {(): share})
        yield self._count("swaps", "Swaps of a speculator", state.swaps, "replica", "outcome")
        ended = {(name,): state.counts[name] for name in ("promoted", "rolled_back")}
        yield self._count("deployments", "Finished deployments", ended, "outcome")

    def _canary(self, verdict: Verdict) -> Iterator[Metric]:
        text = "Latest decision: 1 promote, 0 wait, -1 roll back"
        yield self._gauge("canary_verdict", text, {(): VERDICTS[verdict.action]})
        bounds = zip(("value", "lower", "upper"), verdict.figures.get("speed", ()), strict=False)
        ratios = {("speed", bound): value for bound, value in bounds}
        for measure in ("acceptance", "ttft", "latency_p99", "replica"):
            ratios[measure, "value"] = verdict.figures.get(measure)
        yield self._gauge("canary_ratio", "Canary / stable", ratios, "measure", "bound")
        counts = {
            (name,): verdict.figures.get(name)
            for name in ("stable_requests", "canary_requests", "failures")
        }
        yield self._gauge("canary_test", "Requests that the decision rests on", counts, "count")

    def _adaptation(self, state: State) -> Iterator[Metric]:
        if state.usable and (newest := state.usable[-1]).acceptance is not None:
            value = newest.acceptance.value
            text = "Acceptance length, newest window"
            yield self._gauge("window_tokens_per_step", text, {(): value})
            ratio = newest.ratio.value if newest.ratio is not None else None
            text = "Acceptance length over the base's, newest window"
            yield self._gauge("window_over_base_ratio", text, {(): ratio})
            fall = newest_fall(state, newest.release, min_drop=0.0)
            text = "That of the last windows over the release's windows before"
            yield self._gauge("window_fall_ratio", text, {(): fall.value if fall else None})
        outcomes = [each.outcome or "lost" for each in state.rounds if each.settled]
        rounds = {(name,): outcomes.count(name) for name in set(outcomes)}
        yield self._count("rounds", "Finished training rounds", rounds, "outcome")
        running = float(state.pending_round is not None)
        yield self._gauge("round_running", "1 while a round is under way", {(): running})
        spent = sum(seconds for _, seconds in state.spent)
        yield self._count("adapt_gpu_seconds", "GPU time of adaptation", {(): spent})

    def _gauge(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        family = GaugeMetricFamily(f"outrider_{name}", text, labels=["endpoint", *labels])
        return self._filled(family, values)

    def _count(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        family = CounterMetricFamily(f"outrider_{name}", text, labels=["endpoint", *labels])
        return self._filled(family, values)

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, values: Values
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for key, value in values.items():
            if value is not None:
                family.add_metric([self._endpoint, *key], value)
        return family

    def decided(self, verdict: Verdict) -> None:
        """Takes over the canary's latest decision."""
        self._verdict = verdict
        self.publish(self._state)

    def publish(self, state: State) -> None:
        """Takes the journal's state over and writes the text file."""
        self._state = state
        if self._textfile is not None:
            # A full disk must not stop a rollback: the file is written again at the next change.
            with contextlib.suppress(OSError):
                write_to_textfile(str(self._textfile), self.registry)


@contextlib.contextmanager
def reporting(endpoint: Endpoint, port: int | None = None) -> Iterator[LiveMetrics]:
    """The metrics of one process: in the text file and, with a port, on 127.0.0.1.

    An `OutriderError` if the port is in use.
    """
    endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    metrics = LiveMetrics(endpoint.name, endpoint.state_dir / METRICS)
    metrics.publish(fold(read_journal(endpoint.journal)))
    if port is None:
        yield metrics
        return
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
    except OSError as error:
        raise OutriderError(
            f"metrics: port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose another"
            " port"
        ) from None
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
