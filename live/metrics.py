"""Prometheus metrics of the controller of a live endpoint and of `adapt-speculator`.

    log = event_log(sys.stderr, "resume")
    with LiveMetrics("resume", port=9464, textfile=state_dir / "metrics.prom", log=log) as metrics:
        metrics.state("canary")
        metrics.observed("canary", observations)

Values are counts, times and ratios; labels are names of replicas, releases and states. A label that
is not such a name becomes `withheld`, so no text of a request can reach a metric. Served on the
loopback interface only; `textfile` is for node_exporter's textfile collector. The dashboard in
live/grafana/ and the manifests in live/manifests/ read these names.
"""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
    write_to_textfile,
)

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import Endpoint
from outrider.live.event_log import Log, event_log, name_or_withheld
from outrider.live.observations import Observation

Group = Literal["stable", "canary"]
Action = Literal["wait", "promote", "roll_back"]

VERDICTS: dict[str, int] = {"roll_back": -1, "wait": 0, "promote": 1}
"""Values of `outrider_canary_verdict`."""

METRICS = "metrics.prom"
"""In `state_dir`, for node_exporter's textfile collector."""

LOG = "events.jsonl"
"""In `state_dir`: one JSON object per event, without text of requests."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG_SECONDS = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)
_TOKENS_PER_S = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)


class LiveMetrics:
    """One registry of metrics per process; every method is one event."""

    def __init__(
        self,
        endpoint: str,
        port: int | None = None,
        textfile: Path | None = None,
        log: Log | None = None,
    ) -> None:
        """`port`: serve http://127.0.0.1:PORT/metrics (0: any free port). `textfile`: also write
        the metrics there after each event. `log`: gets every event too (event_log.py). A port in
        use is an `OutriderError`.
        """
        self.registry = CollectorRegistry()
        self.port: int | None = None
        self._endpoint = name_or_withheld(endpoint)
        self._textfile, self._log = textfile, log
        self._server: Any = None
        self._started: float | None = None
        self._served: dict[str, str] = {}
        self._last_action: Action | None = None

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider_{name}", text, ("endpoint", *labels), registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"outrider_{name}", text, ("endpoint", *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(
                f"outrider_{name}",
                text,
                ("endpoint", *labels),
                registry=self.registry,
                buckets=tuple(buckets),
            )

        self._state = gauge("controller_state", "1 for the controller's state", "state")
        self._serving = gauge(
            "replica_serving", "1 for the release that a replica serves", "replica", "version"
        )
        self._share = gauge("canary_share_ratio", "Share of requests sent to the canary, 0 to 1")
        self._swaps = counter(
            "swaps", "Exchanges of the speculator of a replica", "replica", "outcome"
        )
        self._swap_seconds = histogram(
            "swap_seconds", "Time of an exchange: read, apply, stall", _SECONDS, "part"
        )
        self._requests = counter("requests", "Finished requests", "group", "outcome")
        self._tokens = counter("completion_tokens", "Generated tokens", "group")
        self._drafts = counter("drafts", "Speculative steps of finished requests", "group")
        self._accepted = counter("accepted_tokens", "Accepted drafted tokens", "group")
        self._ttft = histogram("ttft_seconds", "Time to the first token", _SECONDS, "group")
        self._speed = histogram(
            "request_tokens_per_second", "Tokens/s of a request's decoding", _TOKENS_PER_S, "group"
        )
        self._verdict = gauge("canary_verdict", "Latest decision: 1 promote, 0 wait, -1 roll back")
        self._ratio = gauge(
            "canary_ratio",
            "Confidence sequence of canary relative to stable",
            "measure",
            "bound",
        )
        self._deployments = counter("deployments", "Finished deployments", "outcome")
        self._deployment_seconds = histogram(
            "deployment_seconds", "Time from the first exchange to the end", _LONG_SECONDS
        )
        self._recoveries = counter("recoveries", "Starts that found an unfinished deployment")
        self._exchanges = counter("log_exchanges", "Exchanges read from the log", "outcome")
        self._lag = gauge("log_lag_bytes", "Bytes of the log that are not read yet")
        self._window = gauge(
            "window_tokens_per_step", "Acceptance on the newest traffic by exact replay"
        )
        self._reference = gauge(
            "reference_tokens_per_step", "Acceptance when the release was promoted"
        )
        self._drift = gauge("drift_score", "Drift of the newest traffic from the training traffic")
        self._rounds = counter("rounds", "Finished rounds of adaptation", "outcome")
        self._round_running = gauge("round_running", "1 while a round of adaptation runs")
        self._gpu_seconds = counter("round_gpu_seconds", "GPU time of rounds of adaptation")
        self._budget = gauge("budget_gpu_hours", "GPU hours left today")
        # Values that a dashboard and an alert expect from the beginning.
        for outcome in ("promoted", "rolled_back", "failed"):
            self._deployments.labels(self._endpoint, outcome)
        self._recoveries.labels(self._endpoint)
        self._verdict.labels(self._endpoint).set(0)
        self._share.labels(self._endpoint).set(0)
        if port is not None:
            self._serve(port)
        self._publish()

    # -- the controller ---------------------------------------------------------------------------

    def state(self, name: str) -> None:
        """The controller is in this state, such as `canary`."""
        self._state.clear()
        self._state.labels(self._endpoint, name_or_withheld(name)).set(1)
        self._tell("state", state=name)

    def serving(self, replica: str, version: str | None) -> None:
        """A replica serves this release; None: the speculator that it was started with."""
        name, served = name_or_withheld(replica), name_or_withheld(version or "initial")
        if name in self._served:
            self._serving.remove(self._endpoint, name, self._served[name])
        self._served[name] = served
        self._serving.labels(self._endpoint, name, served).set(1)
        self._tell("serving", replica=replica, version=version)

    def share(self, percent: float) -> None:
        """The canary gets this percentage of the requests."""
        self._share.labels(self._endpoint).set(percent / 100)
        self._tell("share", percent=percent)

    def swapped(self, replica: str, read_s: float, apply_s: float, stall_s: float) -> None:
        """A replica exchanged its speculator."""
        self._swaps.labels(self._endpoint, name_or_withheld(replica), "applied").inc()
        for part, seconds in (("read", read_s), ("apply", apply_s), ("stall", stall_s)):
            self._swap_seconds.labels(self._endpoint, part).observe(seconds)
        self._tell("swapped", replica=replica, read_s=read_s, apply_s=apply_s, stall_s=stall_s)

    def swap_refused(self, replica: str) -> None:
        """A replica refused a bundle and serves the old speculator."""
        self._swaps.labels(self._endpoint, name_or_withheld(replica), "refused").inc()
        self._tell("swap_refused", replica=replica)

    def swap_reverted(self, replica: str) -> None:
        """A replica took its last exchange back because acceptance fell short."""
        self._swaps.labels(self._endpoint, name_or_withheld(replica), "reverted").inc()
        self._tell("swap_reverted", replica=replica)

    def deployment_started(self) -> None:
        """A deployment begins: the next `deployment_finished` is timed from here."""
        self._started = time.monotonic()
        self._verdict.labels(self._endpoint).set(VERDICTS["wait"])
        self._ratio.clear()
        self._last_action = None
        self._tell("deployment_started")

    def deployment_finished(self, outcome: Literal["promoted", "rolled_back", "failed"]) -> None:
        """A deployment ended."""
        self._deployments.labels(self._endpoint, outcome).inc()
        if self._started is not None:
            elapsed = time.monotonic() - self._started
            self._deployment_seconds.labels(self._endpoint).observe(elapsed)
            self._started = None
        self._tell("deployment_finished", outcome=outcome)

    def observed(self, group: Group, requests: Iterable[Observation]) -> None:
        """Finished requests of one group of replicas, each counted once."""
        for request in requests:
            outcome = "failed" if request.failed else "ok"
            self._requests.labels(self._endpoint, group, outcome).inc()
            self._tokens.labels(self._endpoint, group).inc(request.completion_tokens)
            self._drafts.labels(self._endpoint, group).inc(request.drafts)
            self._accepted.labels(self._endpoint, group).inc(request.accepted)
            if request.failed:
                continue
            if request.ttft_s is not None:
                self._ttft.labels(self._endpoint, group).observe(request.ttft_s)
            if request.decode_s and request.completion_tokens > 1:
                # The first token ends the prefill; decoding makes the others.
                speed = (request.completion_tokens - 1) / request.decode_s
                self._speed.labels(self._endpoint, group).observe(speed)
        self._publish()

    def decided(
        self, action: Action, ratios: Mapping[str, tuple[float, float]] | None = None
    ) -> None:
        """A decision and its confidence sequences: measure -> (lower, upper) of canary / stable.

        Measures are such as `speed`, `acceptance` and `ttft`. Infinite bounds are left out.
        """
        self._verdict.labels(self._endpoint).set(VERDICTS[action])
        for measure, bounds in (ratios or {}).items():
            for bound, value in zip(("lower", "upper"), bounds, strict=True):
                if math.isfinite(value):
                    self._ratio.labels(self._endpoint, name_or_withheld(measure), bound).set(value)
        # A canary is looked at every few seconds.
        if action != self._last_action:
            self._last_action = action
            self._tell("decided", action=action, ratios=dict(ratios or {}))
        self._publish()

    def recovered(self) -> None:
        """A start found an unfinished deployment in the journal."""
        self._recoveries.labels(self._endpoint).inc()
        self._tell("recovered")

    # -- adapt-speculator -------------------------------------------------------------------------

    def log_read(self, accepted: int, rejected: int, lag_bytes: int) -> None:
        """Exchanges were read from the log; `lag_bytes` are still unread."""
        self._exchanges.labels(self._endpoint, "accepted").inc(accepted)
        self._exchanges.labels(self._endpoint, "rejected").inc(rejected)
        self._lag.labels(self._endpoint).set(lag_bytes)
        self._tell("log_read", accepted=accepted, rejected=rejected, lag_bytes=lag_bytes)

    def window(
        self, tokens_per_step: float, reference: float | None = None, drift: float | None = None
    ) -> None:
        """Acceptance of the serving speculator on the newest window, by exact replay."""
        self._window.labels(self._endpoint).set(tokens_per_step)
        if reference is not None:
            self._reference.labels(self._endpoint).set(reference)
        if drift is not None:
            self._drift.labels(self._endpoint).set(drift)
        self._tell("window", tokens_per_step=tokens_per_step, reference=reference, drift=drift)

    def round_started(self) -> None:
        """A round of adaptation begins."""
        self._round_running.labels(self._endpoint).set(1)
        self._tell("round_started")

    def round_finished(
        self, outcome: Literal["shipped", "lost", "failed"], gpu_seconds: float
    ) -> None:
        """A round ended; `lost`: it did not beat the speculator in use."""
        self._round_running.labels(self._endpoint).set(0)
        self._rounds.labels(self._endpoint, outcome).inc()
        self._gpu_seconds.labels(self._endpoint).inc(gpu_seconds)
        self._tell("round_finished", outcome=outcome, gpu_seconds=gpu_seconds)

    def budget(self, gpu_hours_left: float) -> None:
        """What is left of today's budget."""
        self._budget.labels(self._endpoint).set(gpu_hours_left)
        self._tell("budget", gpu_hours_left=gpu_hours_left)

    # -- output -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops the HTTP server; the text file stays."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None

    def __enter__(self) -> "LiveMetrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, port: int) -> None:
        try:
            self._server = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise OutriderError(
                f"metrics: port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose"
                " another port"
            ) from None
        self.port = self._server[0].server_port

    def _tell(self, event: str, **fields: Any) -> None:
        if self._log is not None:
            # A log that cannot be written must not stop a rollback.
            with contextlib.suppress(OSError, ValueError):
                self._log(event, **fields)
        self._publish()

    def _publish(self) -> None:
        if self._textfile is None:
            return
        # A full disk must not stop a rollback: the file is written again at the next event.
        with contextlib.suppress(OSError):
            write_to_textfile(str(self._textfile), self.registry)


@contextlib.contextmanager
def reporting(
    endpoint: Endpoint, port: int | None = None, textfile: str = METRICS
) -> Iterator[LiveMetrics]:
    """The metrics of one process: in a text file, in the log and, with a port, on 127.0.0.1.

    Two processes of an endpoint need text files of different names.
    """
    endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        (endpoint.state_dir / LOG).open("a", encoding="utf-8", buffering=1) as stream,
        LiveMetrics(
            endpoint.name, port, endpoint.state_dir / textfile, event_log(stream, endpoint.name)
        ) as metrics,
    ):
        yield metrics
