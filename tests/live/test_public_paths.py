"""Which of vLLM's paths customers reach through the router, however they are written."""

import http.client
import posixpath
import re
import socket
import typing
import urllib.parse
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.live.local import running_router
from outrider.serving.admin.address import Address
from tests.live.fleet import Fleet

ADMIN = "/v1/admin/speculator"
"""The route that swaps speculators: an endpoint plugin of Outrider's."""

BELOW_V1 = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", ADMIN, f"{ADMIN}/requests"}
"""Paths of /v1 that administer the server."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet, running_router(fleet.endpoint):
        yield fleet


def public(path: str) -> bool:
    below = path.startswith("/v1/") and path not in BELOW_V1
    return below or path == "/health"


def test_customers_reach_the_public_routes_of_vllm_and_no_others(fleet) -> None:
    """Those of its server in development mode, for all tasks."""
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.tasks import SupportedTask
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        patch.setenv("VLLM_PLUGINS", "outrider")
        words = ["--model", "none", "--enable-tokenizer-info-endpoint"]
        arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
        app = build_app(arguments, typing.get_args(SupportedTask))
    registered = {
        (method, re.sub(r"\{[^}]*\}", "some", route.path))
        for route in app.routes
        for method in getattr(route, "methods", None) or ["GET"]
    }
    routes = registered | {(method, path) for path in BELOW_V1 for method in ("GET", "POST")}
    paths = {path for _, path in routes}
    # The list is that of the installed vLLM; these keep it from being empty.
    assert len(paths) > 45 and paths >= {
        *("/pause", "/update_weights", "/collective_rpc", "/invocations", "/tokenize"),
        *("/v1/chat/completions", "/v1/responses/some", "/v1/models", "/health"),
    }
    reached = {(m, p) for m, p in routes if fleet.ask(method=m, path=p).status != 404}
    assert reached == {(method, path) for method, path in routes if public(path)}


def disguises(path: str) -> list[str]:
    """Other ways to write a path, some of which servers read as the same."""
    below = path.removeprefix("/v1/").lstrip("/")
    encoded = "".join(f"%{ord(letter):02x}" for letter in below)
    return [
        f"/{path}",
        f"/.{path}",
        f"//.//{path}",
        f"{path}/",
        f"{path}/.",
        f"{path};x=1",
        f"{path};/v1/x",
        f"{path}?/v1/models",
        f"{path}%20",
        f"{path}%00",
        f"{path}%3f",
        f"/v1/..{path}",
        f"/v1/../..{path}",
        f"/v1/x/..;/..{path}",
        f"/v1/%2e%2e{path}",
        f"/v1/.%2E{path}",
        f"/v1/..%2f{path[1:]}",
        f"/v1/..%252f{path[1:]}",
        f"/v1/..%5c{path[1:]}",
        f"/v1\\..\\{path[1:]}",
        f"/v1/%c0%ae%c0%ae{path}",
        f"/v1/models/../..{path}",
        f"/v1/models/..{path.removeprefix('/v1')}",
        f"/health/..{path}",
        f"/health{path}",
        f"/v1/{encoded}" if path.startswith("/v1/") else f"/{encoded}",
        f"/v1/%{below[0].encode().hex()}{below[1:]}",
        f"/v1/%25{below[0].encode().hex()}{below[1:]}",
        f"/v1/models#/..{path}",
        f"http://localhost{path}",
        f"http://localhost/v1/..{path}",
        path.upper(),
    ]


def raw(
    fleet: Fleet, target: str, method: str = "GET", headers: str = ""
) -> tuple[int, str | None]:
    """Status, and the path that a replica was sent; None if none was.

    No HTTP library has tidied up the request line.
    """
    path = Address.parse(fleet.endpoint.router.listen).path
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(path)
        client.sendall(f"{method} {target} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode("latin-1"))
        response = http.client.HTTPResponse(client, method=method)
        response.begin()
        match = re.search(r'"path": "([^"]*)"', response.read().decode())
        return response.status, match[1] if match else None


def read_as(path: str) -> str:
    """The path as the most lenient server reads it."""
    path = path.partition("?")[0]
    for _ in range(3):
        path = urllib.parse.unquote(path)
    return re.sub("/+", "/", posixpath.normpath(path.replace("\\", "/"))).partition(";")[0].lower()


def refused_or_public(fleet: Fleet, target: str) -> bool:
    status, path = raw(fleet, target)
    if path is None:
        return status in (400, 404)
    seen = read_as(path)
    allowed = seen == "/v1" or (public(seen) and not seen.startswith("/v1/admin"))
    return allowed and "%" not in path.partition("?")[0]


@pytest.mark.attack("paths")
@pytest.mark.parametrize(
    "target",
    [
        text
        for path in (ADMIN, "/pause", "/v1/load_lora_adapter", "/update_weights", "/metrics")
        for text in disguises(path)
    ],
)
def test_no_other_way_to_write_a_path_gets_through(fleet, target) -> None:
    assert refused_or_public(fleet, target)


PIECES = [
    *[
        "/",
        "//",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        "%2f",
        "%5c",
        "\\",
        ";",
        "%3b",
        "?",
        "#",
        "%00",
        "%25",
    ],
    *["v1", "V1", "admin", "%61dmin", "Admin", "pause", "speculator", "models", "health", "x"],
]


@pytest.mark.attack("paths")
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join))
def test_whatever_is_sent_a_replica_only_gets_public_paths(fleet, tail) -> None:
    for target in (f"/v1/{tail}", f"/{tail}"):
        assert refused_or_public(fleet, target), target


@pytest.mark.attack("requests")
@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "OPTIONS", "PUT", "DELETE"])
def test_no_method_and_no_upgrade_reaches_another_path(fleet, method) -> None:
    for target in ("/pause", ADMIN, "*", "/v1/../pause"):
        status, path = raw(fleet, target, method)
        assert path is None and status in (400, 404), (method, target)
    for protocol in ("websocket", "h2c"):
        headers = f"connection: upgrade\r\nupgrade: {protocol}\r\n"
        assert raw(fleet, "/v1/realtime", headers=headers)[0] in (200, 400, 403)


def test_the_refusal_is_openai_s_kind_of_error(fleet) -> None:
    answer = fleet.ask(path="/pause")
    assert (answer.status, answer.body["error"]["code"]) == (404, 404)
    # The name of a model or a response may have these characters.
    assert fleet.ask(path="/v1/models/org/model-1.5@a:b_c", method="GET").status == 200
