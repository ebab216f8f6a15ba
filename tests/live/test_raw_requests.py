"""Requests that no client sends: at most one reaches a replica, without the attacker's headers."""

import json
import re
import socket
from collections.abc import Iterator

import pytest

from outrider.live.local import running_router
from outrider.serving.admin.address import Address
from tests.live.fleet import Fleet
from tests.live.test_public_paths import public

pytestmark = pytest.mark.attack("requests")

SMUGGLED = "GET /v1/admin/speculator HTTP/1.1\r\nHost: x\r\n\r\n"
POST = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNK = f"2\r\n{{}}\r\n0\r\n\r\n{SMUGGLED}"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet, running_router(fleet.endpoint):
        yield fleet


def with_lengths(*headers: str, body: str = CHUNK) -> str:
    return POST + "".join(f"{header}\r\n" for header in headers) + "\r\n" + body


def with_header(*lines: str) -> str:
    return (
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n" + "".join(f"{one}\r\n" for one in lines) + "\r\n"
    )


REQUESTS = {
    "length-and-chunks": with_lengths("Content-Length: 4", "Transfer-Encoding: chunked"),
    "chunks-and-length": with_lengths("Transfer-Encoding: chunked", "Content-Length: 4"),
    "two-lengths": with_lengths("Content-Length: 2", "Content-Length: 60", body="{}" + SMUGGLED),
    "lengths-in-a-list": with_lengths("Content-Length: 2, 60", body="{}" + SMUGGLED),
    "negative-length": with_lengths("Content-Length: -2", body="{}" + SMUGGLED),
    "signed-length": with_lengths("Content-Length: +2", body="{}" + SMUGGLED),
    "hexadecimal-length": with_lengths("Content-Length: 0x2", body="{}" + SMUGGLED),
    "huge-length": with_lengths("Content-Length: " + "9" * 30, body="{}" + SMUGGLED),
    "spaced-name": with_lengths("Content-Length : 2", body="{}" + SMUGGLED),
    "chunked-twice": with_lengths("Transfer-Encoding: chunked, chunked"),
    "chunked-identity": with_lengths("Transfer-Encoding: chunked, identity", "Content-Length: 4"),
    "chunked-misspelled": with_lengths("Transfer-Encoding: xchunked", "Content-Length: 4"),
    "chunked-tab": with_lengths("Transfer-Encoding:\tchunked", "Content-Length: 4"),
    "chunked-folded": with_lengths("Transfer-Encoding:", " chunked", "Content-Length: 4"),
    "chunk-size-signed": with_lengths("Transfer-Encoding: chunked", body="+2\r\n{}\r\n0\r\n\r\n"),
    "chunk-size-huge": with_lengths("Transfer-Encoding: chunked", body="f" * 20 + "\r\n{}"),
    "trailers": with_lengths(
        "Transfer-Encoding: chunked", "Trailer: x-evil", body="2\r\n{}\r\n0\r\nx-evil: 1\r\n\r\n"
    ),
    "bare-line-feeds": "GET /v1/models HTTP/1.1\nHost: x\n\n" + SMUGGLED,
    "bare-carriage-return": with_header("x-evil: a\rx-other: b"),
    "folded-header": with_header("x-evil: a", " x-other: b"),
    "nul-in-a-header": with_header("x-evil: a\0b"),
    "header-without-a-name": with_header(": evil"),
    "header-of-a-megabyte": with_header("x-evil: " + "a" * 2**20),
    "5000-headers": with_header(*(f"x-evil-{number}: 1" for number in range(5_000))),
    "two-hosts": with_header("Host: y"),
    "no-host": "GET /v1/models HTTP/1.1\r\n\r\n",
    "version-0.9": "GET /v1/models\r\n",
    "version-3.7": "GET /v1/models HTTP/3.7\r\nHost: x\r\n\r\n",
    "http2-preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "spaces-in-the-line": "GET  /v1/models  HTTP/1.1\r\nHost: x\r\n\r\n",
    "path-of-100-kB": f"GET /v1/{'a' * 100_000} HTTP/1.1\r\nHost: x\r\n\r\n",
    "envoy-original-path": with_header("x-envoy-original-path: /v1/admin/speculator"),
    "envoy-retry": with_header("x-envoy-retry-on: 5xx", "x-envoy-max-retries: 1000"),
    "envoy-timeout": with_header("x-envoy-upstream-rq-timeout-ms: 1"),
    "envoy-internal": with_header("x-envoy-internal: true"),
    "forwarded": with_header("x-forwarded-for: 127.0.0.1", "x-forwarded-host: evil"),
    "expect": with_lengths("Expect: 100-continue", "Content-Length: 2", body="{}"),
    "upgrade-h2c": with_header("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
    "connection-names-headers": with_header("Connection: close, authorization, host"),
}


def answered(fleet: Fleet, request: str) -> str:
    """All that comes back until nothing does for half a second."""
    path = Address.parse(fleet.endpoint.router.listen).path
    received = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.settimeout(10)
        try:
            client.sendall(request.encode("latin-1"))
            while data := client.recv(2**16):
                received += data
                client.settimeout(0.5)
        except (TimeoutError, ConnectionError):
            pass  # it waits for the rest of the request, or has refused it while it was sent
    return received.decode("latin-1")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request(fleet: Fleet, name: str) -> None:
    text = answered(fleet, REQUESTS[name])
    reached = [json.loads(line) for line in re.findall(r"\{\"name\": .*\}", text)]
    assert len(reached) <= 1, text
    for request in reached:
        assert public(request["path"]) and "admin" not in request["path"]
        headers = request["headers"]
        assert not {name for name in headers if name.startswith("x-evil")} - {"x-evil"}
        assert headers.get("x-envoy-original-path") != "/v1/admin/speculator"
        assert not {"x-envoy-retry-on", "x-envoy-internal"} & headers.keys()
        assert "\r" not in "".join(headers.values())
    assert fleet.ask({}).status == 200, "other customers are served"
