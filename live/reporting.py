"""Metrics and log of a controller's events, where the extra `live` is installed.

with reporting(endpoint, port=9464) as events: deploy_bundle(bundle, endpoint, events=events)
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from outrider.live.endpoint_file import Endpoint
from outrider.live.parts import Events

if TYPE_CHECKING:
    from outrider.live.metrics import LiveMetrics

METRICS = "metrics.prom"
"""In `state_dir`, for node_exporter's textfile collector."""

LOG = "events.jsonl"
"""In `state_dir`: one JSON object per event, without text of requests."""


@contextlib.contextmanager
def reporting(endpoint: Endpoint, port: int | None = None) -> Iterator[Events]:
    """`LiveMetrics` in a text file, in a log and, with a port, over HTTP on 127.0.0.1."""
    with live_metrics(endpoint, port) as metrics:
        yield Events() if metrics is None else cast(Events, metrics)


@contextlib.contextmanager
def live_metrics(
    endpoint: Endpoint, port: int | None = None, textfile: str = METRICS
) -> Iterator["LiveMetrics | None"]:
    """The metrics of one process; None without the extra and without a port.

    Two processes of an endpoint need text files of different names.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        if port is None:
            yield None
            return
    from outrider.live.event_log import event_log
    from outrider.live.metrics import LiveMetrics

    endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        (endpoint.state_dir / LOG).open("a", encoding="utf-8", buffering=1) as stream,
        LiveMetrics(
            endpoint.name,
            port,
            endpoint.state_dir / textfile,
            event_log(stream, endpoint.name),
        ) as metrics,
    ):
        yield metrics
