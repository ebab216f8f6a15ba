"""Metrics and log of a controller's events, where the extra `live` is installed.

with reporting(endpoint, port=9464) as events: deploy_bundle(bundle, endpoint, events=events)
"""

import contextlib
from collections.abc import Iterator
from typing import cast

from outrider.recipes.live.parts import Events
from outrider.serving.live.endpoint_file import Endpoint

METRICS = "metrics.prom"
"""In `state_dir`, for node_exporter's textfile collector."""

LOG = "events.jsonl"
"""In `state_dir`: one JSON object per event, without text of requests."""


@contextlib.contextmanager
def reporting(endpoint: Endpoint, port: int | None = None) -> Iterator[Events]:
    """`LiveMetrics` in a text file, in a log and, with a port, over HTTP on 127.0.0.1."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        if port is None:
            yield Events()
            return
    from outrider.serving.live.event_log import event_log
    from outrider.serving.live.metrics import LiveMetrics

    endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        (endpoint.state_dir / LOG).open("a", encoding="utf-8", buffering=1) as stream,
        LiveMetrics(
            endpoint.name,
            port,
            endpoint.state_dir / METRICS,
            event_log(stream, endpoint.name),
        ) as metrics,
    ):
        yield cast(Events, metrics)
