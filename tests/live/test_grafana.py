"""The Grafana dashboard: its schema, and every query against a Prometheus with our metrics."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.live import metrics as live_metrics
from outrider.live.metrics import LiveMetrics
from tests.live.test_metrics import all_events, values

DASHBOARD = Path(live_metrics.__file__).parent / "grafana" / "live_endpoint.json"
PROMETHEUS = shutil.which("prometheus")


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def queries() -> list[str]:
    """Every PromQL expression, with Grafana's variables filled in."""
    page = dashboard()
    found = [target["expr"] for panel in page["panels"] for target in panel.get("targets", [])]
    found += [annotation["expr"] for annotation in page["annotations"]["list"]]
    filled = []
    for query in found:
        for name, value in (
            ("$endpoint", "resume"),
            ("$__rate_interval", "10s"),
            ("$__interval", "10s"),
        ):
            query = query.replace(name, value)
        assert "$" not in query
        filled.append(query)
    return filled


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken = set()
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))


def test_every_metric_is_shown_and_none_is_invented() -> None:
    metrics = LiveMetrics("resume")
    all_events(metrics)
    exist = {key[0] for key in values(metrics)}
    shown = {name for query in queries() for name in re.findall(r"outrider_\w+", query)}
    assert not shown - exist

    def family(name: str) -> str:
        return re.sub(r"_(bucket|sum|count|created|total)$", "", name)

    # Times and tokens of a group that another panel is made from.
    not_shown = {"outrider_completion_tokens", "outrider_deployment_seconds"}
    assert {family(name) for name in exist} - {family(name) for name in shown} == not_shown


def test_grafanas_types_take_the_dashboard_whole() -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")

    def read_back(page: dict[str, Any]) -> Any:
        return json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(page)))

    def lost(written: Any, read: Any, place: str = "") -> list[str]:
        """Places of values that Grafana's types drop or change; they add defaults."""
        if isinstance(written, dict) and isinstance(read, dict):
            pairs = [(key, value, read.get(key)) for key, value in written.items()]
        elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
            pairs = [(str(i), *pair) for i, pair in enumerate(zip(written, read, strict=True))]
        else:
            return [] if written == read else [place]
        return [each for key, a, b in pairs for each in lost(a, b, f"{place}/{key}")]

    page = dashboard()
    assert lost(page, read_back(page)) == []
    page["panels"][1]["gridPosition"] = {"x": 0}
    assert lost(page, read_back(page)) == ["/panels/1/gridPosition"]


@contextlib.contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus that scrapes a port of 127.0.0.1; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scrape = {
        "job_name": "outrider",
        "scrape_interval": "200ms",
        "scrape_timeout": "200ms",
        "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"GOMAXPROCS": "1"}
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def ask(address: str, query: str) -> list[Any]:
    """The samples of an instant query; none while Prometheus starts."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except urllib.error.URLError:
        return []


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is missing (Debian's package)")
def test_every_query_has_an_answer(tmp_path: Path) -> None:
    with (
        LiveMetrics("resume", port=0) as metrics,
        prometheus(tmp_path, metrics.port or 0) as address,
    ):
        (rolled_back,) = (query for query in queries() if "rolled_back" in query)
        waiting = set(queries()) - {rolled_back}
        end = time.monotonic() + 60
        while waiting and time.monotonic() < end:
            all_events(metrics)  # rates need counters that rise
            waiting -= {query for query in waiting if ask(address, query)}
            time.sleep(0.2)
        assert waiting == set()
        assert ask(address, rolled_back) == []  # nothing was, but it is PromQL
