"""Cost of a log of many small objects in S3, over HTTP.

    pip install s3fs 'moto[s3,server]'
    python -m benchmarks.s3_objects --count 100000 --latency 0.03

Ingests objects of one exchange each, as LiteLLM writes them, from moto's server in a process of its
own, which waits before each request and counts requests. The last line of stdout is JSON. Results:
results/data.md.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.reading_logs import TARGET, exchange
from outrider.common.process_tree import wait_until
from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest

BUCKET = "logs"
COUNTS = "/requests-so-far"
"""Path at which the server answers with its counts."""

WORDS_PER_PROMPT, WORDS_PER_ANSWER = 30, 60


class CountedServer:
    """A WSGI application in front of moto's: waits before each request and counts them."""

    def __init__(self, application: Callable[..., Iterable[bytes]], latency: float) -> None:
        self._application = application
        self._latency = latency
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        is_listing = path.strip("/") == BUCKET
        kind = "list" if is_listing else environ["REQUEST_METHOD"].lower()
        with self._lock:
            self._counts[kind] += 1
            self._counts["now"] += 1
            self._counts["most at once"] = max(self._counts["most at once"], self._counts["now"])
        time.sleep(self._latency)
        try:
            return list(self._application(environ, start_response))
        finally:
            with self._lock:
                self._counts["now"] -= 1


def serve(port: int, count: int, latency: float) -> None:
    """Serves a bucket of `count` objects until the process ends."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    store.create_bucket(BUCKET, "us-east-1")
    rng = random.Random(0)
    for number in range(count):
        row = json.dumps(exchange(rng, WORDS_PER_PROMPT, WORDS_PER_ANSWER)).encode()
        store.put_object(BUCKET, f"2026-07-{number % 28 + 1:02d}/{number:06d}.json", row)
    application = DomainDispatcherApplication(create_backend_app)
    run_simple(
        "127.0.0.1", port, CountedServer(application, latency), threaded=True, use_reloader=False
    )


def counts_of(address: str) -> dict[str, int]:
    """Returns the server's number of requests by kind; empty while it does not answer."""
    try:
        with urllib.request.urlopen(address + COUNTS, timeout=10) as response:
            return dict(json.load(response))
    except OSError:
        return {"starting": 1}


def measured(count: int, latency: float) -> dict[str, Any]:
    """Ingests `count` objects; returns times, and requests per object."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=serve, args=(port, count, latency), daemon=True)
    server.start()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_ENDPOINT_URL": address,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    if not wait_until(lambda: counts_of(address) == {} or not server.is_alive(), seconds=900):
        raise SystemExit("the server does not answer")
    if not server.is_alive():
        raise SystemExit("the server has ended")
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        summary = ingest(TARGET, TrafficConfig(path=f"s3://{BUCKET}"), Path(scratch))
        seconds = time.monotonic() - began
    counts = counts_of(address)
    server.kill()
    most_at_once = counts.pop("most at once")
    del counts["now"]
    return {
        "objects": count,
        "exchanges": summary["exchanges"],
        "latency_s": latency,
        "seconds": round(seconds, 1),
        "requests": counts,
        "most_requests_at_once": most_at_once,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--latency", type=float, default=0.03)
    arguments = parser.parse_args()
    print(json.dumps(measured(arguments.count, arguments.latency)))


if __name__ == "__main__":
    main()
