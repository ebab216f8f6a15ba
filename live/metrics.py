"""Prometheus metrics of a live endpoint, from its journal and from its canary's requests.

    with reporting(endpoint, port=9464) as metrics:
        deploy_bundle(bundle, endpoint, metrics=metrics)

Most of them are the journal's counts, so they go on where an earlier process ended. Values are
counts, times and ratios; labels are names of replicas, releases and outcomes, so no text of a
request can reach a metric. Served on the loopback interface only; `state_dir/metrics.prom` is for
node_exporter's textfile collector. The dashboard in live/grafana/ and the manifests in
live/templates/ read these names.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from outrider.common.errors import OutriderError
from outrider.live.adapt_policy import newest_fall
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import read_journal
from outrider.live.judge import Decision
from outrider.live.state import SWAP_PARTS, State, fold
from outrider.live.traffic import Observation

VERDICTS = {"roll_back": -1, "wait": 0, "promote": 1}
"""Values of `outrider_canary_verdict`."""

METRICS = "metrics.prom"
"""In `state_dir`."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS_PER_S = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)

Values = Iterable[tuple[tuple[str, ...], float]]
"""(values of the labels, value) of each sample."""


class LiveMetrics:
    """The metrics of one process."""

    def __init__(self, endpoint: str, textfile: Path | None = None) -> None:
        """`textfile`: where the metrics are written after each change."""
        self.registry = CollectorRegistry()
        self._endpoint, self._textfile, self._state = endpoint, textfile, State()
        self.registry.register(self)

        def labels(*names: str) -> tuple[str, ...]:
            return ("endpoint", *names)

        self._requests = Counter(
            "outrider_requests", "Finished requests", labels("group", "outcome"),
            registry=self.registry,
        )  # fmt: skip
        self._drafts = Counter(
            "outrider_drafts", "Speculative steps", labels("group"), registry=self.registry
        )
        self._accepted = Counter(
            "outrider_accepted_tokens", "Accepted draft tokens", labels("group"),
            registry=self.registry,
        )  # fmt: skip
        self._ttft = Histogram(
            "outrider_ttft_seconds", "Time to first token", labels("group"),
            registry=self.registry, buckets=_SECONDS,
        )  # fmt: skip
        self._speed = Histogram(
            "outrider_request_tokens_per_second", "Tokens/s of a request's decoding",
            labels("group"), registry=self.registry, buckets=_TOKENS_PER_S,
        )  # fmt: skip
        self._verdict = Gauge(
            "outrider_canary_verdict", "Latest decision: 1 promote, 0 wait, -1 roll back",
            labels(), registry=self.registry,
        )  # fmt: skip
        self._ratio = Gauge(
            "outrider_canary_ratio", "Confidence sequence of canary / stable",
            labels("measure", "bound"), registry=self.registry,
        )  # fmt: skip
        self._verdict.labels(endpoint).set(0)

    def collect(self) -> Iterator[Metric]:
        """What the journal counts; Prometheus calls it at each scrape."""
        state = self._state
        yield self._gauge("controller_state", "1 for the phase", ["state"], [((state.phase,), 1)])
        served = [((name, release), 1.0) for name, release in state.served.items()]
        yield self._gauge(
            "replica_serving",
            "1 for the release that a replica got",
            ["replica", "version"],
            served,
        )
        share = (state.share or 0) / 100
        yield self._gauge("canary_share_ratio", "Share of the canary, 0 to 1", [], [((), share)])
        swaps = list(state.swaps.items())
        yield self._counter("swaps", "Swaps of a speculator", ["replica", "outcome"], swaps)
        applied = sum(count for (_, outcome), count in swaps if outcome == "applied")
        times = SummaryMetricFamily(
            "outrider_swap_seconds", "Time of a swap", labels=["endpoint", "part"]
        )
        for part in SWAP_PARTS:
            times.add_metric([self._endpoint, part], applied, state.swap_s[part])
        yield times
        ended = [(("promoted",), state.promoted), (("rolled_back",), state.rolled_back)]
        yield self._counter("deployments", "Finished deployments", ["outcome"], ended)
        recovered = [((), state.recovered)]
        yield self._counter("recoveries", "Interrupted deployments that were found", [], recovered)
        yield from self._adaptation(state)

    def _adaptation(self, state: State) -> Iterator[Metric]:
        accepted = sum(window.sequences for window in state.usable)
        rows = sum(window.rows for window in state.windows.values() if window.settled)
        read = [(("accepted",), accepted), (("rejected",), rows - accepted)]
        yield self._counter("log_exchanges", "Exchanges read from the log", ["outcome"], read)
        lag = state.newest.unread_bytes if state.newest is not None else 0
        yield self._gauge("log_lag_bytes", "Bytes of the log that are not read", [], [((), lag)])
        if state.usable and (newest := state.usable[-1]).acceptance is not None:
            value = newest.acceptance.value
            yield self._gauge(
                "window_tokens_per_step", "Acceptance length, newest window", [], [((), value)]
            )
            if (fall := newest_fall(state, newest.release, min_drop=0.0)) is not None:
                reference = [((), value / fall.value)]
                yield self._gauge(
                    "reference_tokens_per_step", "Acceptance length at the release", [], reference
                )
        outcomes = [each.outcome or "lost" for each in state.rounds if each.settled]
        rounds = [((name,), outcomes.count(name)) for name in sorted(set(outcomes))]
        yield self._counter("rounds", "Finished training rounds", ["outcome"], rounds)
        running = float(state.pending_round is not None)
        yield self._gauge("round_running", "1 while a round is under way", [], [((), running)])
        spent = [((), sum(seconds for _, seconds in state.spent))]
        yield self._counter("adapt_gpu_seconds", "GPU time of adaptation", [], spent)

    def _gauge(self, name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
        family = GaugeMetricFamily(f"outrider_{name}", text, labels=["endpoint", *labels])
        for key, value in values:
            family.add_metric([self._endpoint, *key], value)
        return family

    def _counter(self, name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
        family = CounterMetricFamily(f"outrider_{name}", text, labels=["endpoint", *labels])
        for key, value in values:
            family.add_metric([self._endpoint, *key], value)
        return family

    def observed(
        self,
        group: Literal["stable", "canary"],
        requests: Iterable[Observation],
        decision: Decision,
    ) -> None:
        """Finished requests of one role, each counted once, and the decision after them."""
        for request in requests:
            outcome = "failed" if request.failed else "ok"
            self._requests.labels(self._endpoint, group, outcome).inc()
            self._drafts.labels(self._endpoint, group).inc(request.drafts)
            self._accepted.labels(self._endpoint, group).inc(request.accepted)
            if not request.failed and request.decode_s > 0 and request.completion_tokens > 1:
                self._ttft.labels(self._endpoint, group).observe(request.ttft_s)
                # The first token ends the prefill; decoding makes the others.
                speed = (request.completion_tokens - 1) / request.decode_s
                self._speed.labels(self._endpoint, group).observe(speed)
        self._verdict.labels(self._endpoint).set(VERDICTS[decision.action])
        self._ratio.clear()
        speed = decision.figures.get("speed", [None, None, None])
        for bound, value in zip(("value", "lower", "upper"), speed, strict=True):
            if value is not None:
                self._ratio.labels(self._endpoint, "speed", bound).set(value)
        self.publish(self._state)

    def publish(self, state: State) -> None:
        """Takes the journal's state over and writes the text file."""
        self._state = state
        if self._textfile is not None:
            # A full disk must not stop a rollback: the file is written again at the next change.
            with contextlib.suppress(OSError):
                write_to_textfile(str(self._textfile), self.registry)

    @contextlib.contextmanager
    def served(self, port: int) -> Iterator[int]:
        """Serves http://127.0.0.1:PORT/metrics (0: any free port); an `OutriderError` if in use."""
        try:
            server, thread = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise OutriderError(
                f"metrics: port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose"
                " another port"
            ) from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextlib.contextmanager
def reporting(endpoint: Endpoint, port: int | None = None) -> Iterator[LiveMetrics]:
    """The metrics of one process: in the text file and, with a port, on 127.0.0.1."""
    endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    metrics = LiveMetrics(endpoint.name, endpoint.state_dir / METRICS)
    metrics.publish(fold(read_journal(endpoint.journal)))
    with contextlib.ExitStack() as stack:
        if port is not None:
            stack.enter_context(metrics.served(port))
        yield metrics
