"""Small replicas behind a real Envoy, all on Unix sockets.

with Fleet(stable=["a", "b"], canary=["c"]) as fleet, running_router(fleet.endpoint) as router:
    assert fleet.ask().name in ("a", "b")
"""

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from outrider.common.process_tree import wait_until
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.router import POOLS, Router
from outrider.serving.admin.address import Address

BACKEND = Path(__file__).with_name("backend.py")
PATIENCE_S = 240.0
"""No test asserts on time; this only ends one that would hang."""


@dataclass
class Answer:
    """What a client got: status 0 if nothing; `complete` is False for a response that broke off."""

    status: int
    body: Any = None
    complete: bool = True

    @property
    def name(self) -> str | None:
        return self.body.get("name") if isinstance(self.body, dict) else None


class Fleet:
    """Replicas as processes, and the endpoint that they belong to."""

    def __init__(
        self, stable: Sequence[str] = ("a",), canary: Sequence[str] = ("c",), **router: Any
    ) -> None:
        # Not pytest's folder: a Unix socket's path has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-")
        self.state = Path(self._folder.name)
        tree = {
            "state_dir": str(self.state),
            "replicas": [
                {"name": name, "role": role, "data": f"unix:{name}.sock"}
                for role, names in (("stable", stable), ("canary", canary))
                for name in names
            ],
            "router": {"listen": "unix:front.sock"} | router,
        }
        self.file = self.state / "fleet.yaml"
        self.file.write_text(yaml.safe_dump(tree))
        self.endpoint: Endpoint = load_endpoint(self.file)
        self.processes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "Fleet":
        for replica in self.endpoint.replicas:
            self.launch(replica.name)
        for replica in self.endpoint.replicas:
            wait_for(Address.parse(replica.data).healthy)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._folder.cleanup()

    def launch(self, name: str) -> None:
        command = [sys.executable, "-S", str(BACKEND), name, str(self.state / f"{name}.sock")]
        self.processes[name] = subprocess.Popen(command)

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def ask(
        self,
        body: dict[str, Any] | None = None,
        path: str = "/v1/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """A request to the router."""
        address = Address.parse(self.endpoint.router.listen)
        status = 0
        try:
            with contextlib.closing(address.connect(PATIENCE_S)) as connection:
                data = json.dumps(body) if body is not None else None
                connection.request(method, path, data, headers or {})
                response = connection.getresponse()
                status = response.status
                text = response.read().decode()
        except (OSError, http.client.HTTPException):
            return Answer(status, complete=False)
        if response.headers.get("Content-Type") == "application/json" and text:
            return Answer(status, json.loads(text))
        if text.startswith("data: "):
            return Answer(status, {"name": text.split()[1]}, complete=text.endswith("[DONE]\n\n"))
        return Answer(status, text)

    @contextlib.contextmanager
    def load(self, bodies: Sequence[dict[str, Any]]) -> Iterator[list[Answer]]:
        """Clients that send requests until the context ends, and what they got."""
        answers: list[Answer] = []
        ended = threading.Event()

        def send(body: dict[str, Any]) -> None:
            while not ended.is_set():
                answers.append(self.ask(body))

        with ThreadPoolExecutor(len(bodies)) as pool:
            pool.map(send, bodies)
            try:
                yield answers
            finally:
                ended.set()

    def names(self, count: int, clients: int = 4, **arguments: Any) -> list[str | None]:
        """Replicas that answered `count` requests, which all succeeded."""
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda _: self.ask(**arguments), range(count)))
        assert [answer for answer in answers if answer.status != 200] == []
        return [answer.name for answer in answers]


def stat(router: Router, role: str, name: str = "membership_healthy") -> int:
    """A figure of Envoy's about the replicas of a role, by default how many get requests now."""
    pattern = urllib.parse.quote(f"^cluster.{POOLS[role]}.{name}$")
    return int(router._call("GET", f"/stats?filter={pattern}").rpartition(":")[2])


def wait_for(condition: Callable[[], object]) -> None:
    assert wait_until(condition, PATIENCE_S), "did not happen"
