"""Clients that send slowly, or stop: they are ended, and Envoy's memory has a limit."""

import contextlib
import json
import select
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from outrider.live import router as router_module
from outrider.live.endpoint_file import load_endpoint
from outrider.live.local import running_router
from outrider.live.router import envoy_config
from tests.live.fleet import Fleet, wait_for

MB = 10**6
LIMIT = 400 * MB
"""Resident memory of Envoy, in bytes."""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(router_module, "HEADERS_S", 2)
    monkeypatch.setattr(router_module, "REQUEST_S", 3)
    with Fleet() as fleet, running_router(fleet.endpoint):
        yield fleet


@contextlib.contextmanager
def connections(fleet: Fleet, count: int) -> Iterator[list[socket.socket]]:
    path = fleet.endpoint.router.listen.removeprefix("unix:")
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            for _ in range(count)
        ]
        for client in opened:
            client.connect(path)
            client.settimeout(5)
        yield opened


def is_ended(client: socket.socket) -> bool:
    """Whether the router has closed the connection; reads what it answered."""
    with contextlib.suppress(TimeoutError):
        try:
            while select.select([client], [], [], 0)[0]:
                if not client.recv(65536):
                    return True
        except ConnectionError:
            return True
    return False


def ended(clients: Sequence[socket.socket]) -> int:
    return sum(map(is_ended, clients))


def peak_memory() -> int:
    """The most resident memory that Envoy had, in bytes."""
    (envoy,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "envoy")
    lines = Path(f"/proc/{envoy.pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@pytest.mark.attack("slow")
@pytest.mark.parametrize("count", [60, 200])
def test_bodies_that_stop_hold_little_memory_and_are_ended(fleet: Fleet, count: int) -> None:
    part = HEAD + b"Content-Length: 31000000\r\n\r\n" + b"x" * 8 * MB

    def send(client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the router stops reading, or ends it
            client.sendall(part)

    with connections(fleet, count) as clients, ThreadPoolExecutor(20) as pool:
        list(pool.map(send, clients))
        assert fleet.ask({"stream": 2}).complete  # other customers are served meanwhile
        wait_for(lambda: ended(clients) == count)
    assert peak_memory() < LIMIT


@pytest.mark.attack("slow")
def test_headers_that_come_a_byte_at_a_time_are_ended(fleet: Fleet) -> None:
    count = 300
    with connections(fleet, count) as clients:
        rest = iter(HEAD)
        open_now = clients

        def all_ended() -> bool:
            nonlocal open_now
            open_now = [client for client in open_now if not is_ended(client)]
            byte = bytes([next(rest, ord("x"))])
            for client in open_now:
                with contextlib.suppress(OSError):
                    client.sendall(byte)
            return not open_now

        wait_for(all_ended)
    assert peak_memory() < LIMIT
    assert fleet.ask({}).status == 200


def test_a_large_body_and_a_long_answer_pass(fleet: Fleet) -> None:
    assert fleet.ask({"text": "x" * 2 * MB}).status == 200
    # 5 s of events, 20 ms apart, after requests that have 3 s; and an answer in one piece.
    bodies: list[dict[str, Any]] = [{"stream": 250, "text": "x" * 2 * MB}, {"seconds": 5}]
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(fleet.ask, bodies):
            assert answer.status == 200 and answer.complete


def durations(tree: Any) -> Iterator[tuple[str, str]]:
    """Every key of Envoy's configuration whose value is a duration."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from durations(value)
        elif (
            isinstance(value, str) and value.endswith("s") and value[:-1].replace(".", "").isdigit()
        ):
            yield key, value


def test_no_limit_of_the_configuration_ends_a_10_minute_answer() -> None:
    with Fleet() as fleet:
        config = yaml.safe_load(envoy_config(load_endpoint(fleet.file)))
    (listener,) = config["static_resources"]["listeners"]
    found = dict(durations(listener))
    assert found.pop("timeout") == "0s"  # of the routes
    assert found.pop("stream_idle_timeout") == "3600s"  # without a byte
    # Of requests, of connections without a request, and of attempts to reach a replica.
    assert found.keys() == {
        "request_headers_timeout", "request_timeout", "idle_timeout", "base_interval",
        "max_interval",
    }  # fmt: skip
    assert "duration" not in json.dumps(config["static_resources"]["clusters"])
