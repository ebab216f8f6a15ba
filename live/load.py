"""Users of an endpoint: streamed requests one after another, counted, for a trial.

    with Load(endpoint, prompts, users=4) as load:
        ...
    load.result().longest_gap_ms

A request failed if it has no status 200, breaks off, or ends without the stream's last event. A gap
is the time between two deliveries of one stream, so the time to the first token is none.
"""

import contextlib
import dataclasses
import gzip
import http.client
import itertools
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import Endpoint
from outrider.serving.admin.address import Address

SHIPPED_TRAFFIC = Path(__file__).resolve().parents[1] / "recipes" / "nano_r1" / "traffic"
REQUESTS_PER_SESSION = 2

_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class LoadResult:
    """What the users saw."""

    requests: int
    failed: int
    median_gap_ms: float
    longest_gap_ms: float
    """Longest time between two deliveries of a stream, in milliseconds."""
    first_failures: tuple[str, ...]
    """How the first few failed; never text of a response."""


def read_prompts(log: str, most: int = 400) -> list[dict[str, Any]]:
    """Requests of a log: a path of JSON lines with `request.messages`, or shipped traffic's name.

    The newest come first, since what a speculator was trained on is older.
    """
    name = Path(log).name
    shipped = SHIPPED_TRAFFIC / f"{name}.jsonl.gz"
    path = shipped if shipped.is_file() and not Path(log).exists() else Path(log).expanduser()
    if not path.is_file():
        raise OutriderError(f"--load {log}: no such file, and no such shipped traffic")
    data = path.read_bytes()
    bodies = []
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            request = json.loads(line)["request"]
            kept = {key: request[key] for key in ("messages", "temperature", "top_p")}
            bodies.append(kept | {"max_tokens": min(request.get("max_tokens") or 256, 256)})
    if not bodies:
        raise OutriderError(f"--load {log}: no line has a `request` with `messages`")
    return bodies[::-1][:most]


class Load:
    """Users in threads, from entering the context to leaving it."""

    def __init__(
        self,
        endpoint: Endpoint,
        bodies: Sequence[dict[str, Any]],
        users: int = 4,
        model: str | None = None,
    ) -> None:
        """`bodies`: of /v1/completions where they have a `prompt`, else of chats."""
        self._address = Address.parse(endpoint.router.listen)
        self._header = endpoint.router.sticky_header
        self._key, self._model = os.environ.get("VLLM_API_KEY"), model  # the replicas have it too
        self._bodies, self._numbers = list(bodies), itertools.count()
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._requests, self._gaps_s = 0, list[float]()
        self._failures: list[str] = []
        self._threads = [threading.Thread(target=self._user, daemon=True) for _ in range(users)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Returns when every user has got the rest of a response."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def result(self) -> LoadResult:
        """So far."""
        with self._lock:
            failures = tuple(self._failures)
            gaps = sorted(self._gaps_s) or [0.0]
            middle, longest = gaps[len(gaps) // 2], gaps[-1]
            return LoadResult(
                self._requests, len(failures), 1000 * middle, 1000 * longest, failures[:5]
            )

    def _user(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._ends.is_set():
            number = next(self._numbers)
            connection = connection or self._address.connect(_TIMEOUT_S)
            try:
                gaps_s, failure = self._request(connection, number)
            except (OSError, http.client.HTTPException, ValueError) as error:
                gaps_s, failure = [], f"request {number}: {type(error).__name__}"
            if failure is not None:
                connection.close()
                connection = None
            with self._lock:
                self._requests += 1
                self._gaps_s += gaps_s
                if failure is not None:
                    self._failures.append(failure)
        if connection is not None:
            connection.close()

    def _request(
        self, connection: http.client.HTTPConnection, number: int
    ) -> tuple[list[float], str | None]:
        """The gaps in seconds, and how it failed."""
        body = self._bodies[number % len(self._bodies)] | {"stream": True}
        if self._model is not None:
            body["model"] = self._model
        headers = {"Content-Type": "application/json"}
        if self._header is not None:
            headers[self._header] = f"user-{number // REQUESTS_PER_SESSION}"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            response.read()
            return [], f"request {number}: status {response.status}"
        last: float | None = None
        gaps_s: list[float] = []
        done = False
        while line := response.readline():
            if not line.startswith(b"data: "):
                continue
            now = time.monotonic()
            done = line.startswith(b"data: [DONE]")
            if b'"error"' in line[:20]:
                return gaps_s, f"request {number}: an error in the stream"
            if last is not None:
                gaps_s.append(now - last)
            last = now
        return gaps_s, None if done else f"request {number}: broke off"
