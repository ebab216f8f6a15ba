"""Users of an endpoint: streamed chats one after another, counted, for a trial.

    with Load(endpoint, read_prompts("nano_r1/resume_screening"), users=4) as load:
        ...
    load.requests, load.failures

A request failed if it has no status 200, breaks off, or ends without the stream's last event.
"""

import contextlib
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
MAX_TOKENS = 160

_TIMEOUT_S = 120.0


def read_prompts(log: str, most: int = 400) -> list[dict[str, Any]]:
    """Chats of a log: a path of JSON lines with `request.messages`, or shipped traffic's name.

    The newest come first, since what a speculator was trained on is older.
    """
    shipped = SHIPPED_TRAFFIC / f"{Path(log).name}.jsonl.gz"
    path = Path(log).expanduser()
    path = path if path.exists() else shipped
    if not path.is_file():
        raise OutriderError(f"--load {log}: no such file, and no such shipped traffic")
    bodies = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                request = json.loads(line)["request"]
                kept = {key: request[key] for key in ("messages", "temperature", "top_p")}
                bodies.append(kept | {"max_tokens": MAX_TOKENS, "stream": True})
    if not bodies:
        raise OutriderError(f"--load {log}: no line has a `request` with `messages`")
    return bodies[::-1][:most]


class Load:
    """Users in threads, from entering the context to leaving it."""

    def __init__(
        self, endpoint: Endpoint, bodies: Sequence[dict[str, Any]], users: int = 4
    ) -> None:
        """`bodies`: of /v1/chat/completions."""
        self.requests = 0
        self.failures: list[str] = []
        """How requests failed; never text of a response."""
        self.longest_gap_s = 0.0
        """Longest time between two deliveries of one stream, in seconds."""
        self._address = Address.parse(endpoint.router.listen)
        self._sticky_header = endpoint.router.sticky_header or "x-session-id"
        self._bodies, self._numbers = bodies, itertools.count()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._user, daemon=True) for _ in range(users)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when every user has received the rest of a response."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _user(self) -> None:
        while not self._ended.is_set():
            number = next(self._numbers)
            try:
                failure = self._request(number)
            except (OSError, http.client.HTTPException) as error:
                failure = type(error).__name__
            with self._lock:
                self.requests += 1
            if failure is not None:
                self.failures.append(f"request {number}: {failure}")

    def _request(self, number: int) -> str | None:
        """How a request failed."""
        headers = {
            "Content-Type": "application/json",
            self._sticky_header: f"user-{number // REQUESTS_PER_SESSION}",
        }
        if (key := os.environ.get("VLLM_API_KEY")) is not None:  # the replicas have it too
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps(self._bodies[number % len(self._bodies)])
        with contextlib.closing(self._address.connect(_TIMEOUT_S)) as connection:
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                return f"status {response.status}"
            last = None
            for line in response:
                if line.startswith(b'data: {"error"'):
                    return "an error in the stream"
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    self.longest_gap_s = max(self.longest_gap_s, now - (last or now))
                    last = now
                if line.startswith(b"data: [DONE]"):
                    return None
        return "broke off"
