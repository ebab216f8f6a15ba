"""Where the admin route listens, and on which servers it refuses."""

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import ADMIN, TOKEN_FILE, admin_token, live_environment
from outrider.serving.admin.replica import REQUESTS, ROUTE
from outrider.serving.vllm_hooks import admin_route
from outrider.serving.vllm_hooks.admin_route import AdminRoute, bind_socket


def client(speculative: Any = None, **parallel: Any) -> Any:
    shown = {"worker_extension_cls": "x", "data_parallel_size": 1, "enable_eplb": False} | parallel
    return SimpleNamespace(
        vllm_config=SimpleNamespace(
            parallel_config=SimpleNamespace(**shown), speculative_config=speculative
        )
    )


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    token = tmp_path / "token"
    for name, value in live_environment([tmp_path], f"unix:{tmp_path}/admin", token).items():
        monkeypatch.setenv(name, value)
    yield token


@pytest.mark.parametrize(
    ("version", "engine", "message"),
    [
        ("0.32.0", None, "no engine"),
        ("0.32.0", client(worker_extension_cls=""), "--worker-extension-cls"),
        ("0.32.0", client(), "with a speculator"),
        ("0.32.0", client(object(), data_parallel_size=2), "with the new speculator"),
        ("0.32.0", client(object(), enable_eplb=True), "with the new speculator"),
        ("0.32.0", client(object()), "the speculator in use cannot be read"),
        ("0.33.0", client(object()), "vLLM 0.33.0 has not been tried"),
    ],
)
def test_a_server_without_what_it_needs_answers_with_the_fix(
    environment: Path, version: str, engine: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import FastAPI

    monkeypatch.setattr(admin_route, "vllm_version", lambda: version)
    body = {"directory": "/r/a", "version": "a", "digest": "0" * 64}

    async def answers() -> list[tuple[int, Any]]:
        customers = FastAPI()
        route = AdminRoute()
        route.attach_router(customers)
        await route.init_state(engine, customers.state, Namespace())
        assert not [each for each in customers.routes if "/v1" in getattr(each, "path", "")]
        address = Address(path=f"{environment.parent}/admin")
        token = admin_token(environment)
        return [
            await asyncio.to_thread(address.call, method, path, body, token, 20)
            for method, path in (("GET", ROUTE), ("POST", ROUTE), ("GET", REQUESTS))
        ]

    for status, answer in asyncio.run(answers()):
        assert status == 503 and message in answer["error"]


@pytest.mark.parametrize(
    ("variables", "flags", "message"),
    [
        ({ADMIN: "http://0.0.0.0:9000"}, {}, "any user of the machine can listen on a port"),
        ({ADMIN: "http://127.0.0.1:9000"}, {}, "give a Unix socket"),
        ({ADMIN: "yes"}, {}, "not an address; write unix:"),
        ({TOKEN_FILE: None}, {}, f"without {TOKEN_FILE}"),
        ({}, {"api_server_count": 2}, "--api-server-count 1"),
    ],
)
def test_a_server_whose_route_others_could_open_does_not_start(
    environment: Path,
    variables: dict[str, str | None],
    flags: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(OutriderError, match=message):
        asyncio.run(AdminRoute().init_state(client(), None, Namespace(**flags)))
    assert not (environment.parent / "admin").exists()


def test_the_token_file_is_private_and_written_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = admin_token(path)
    assert len(token) == 64 and path.stat().st_mode & 0o777 == 0o600
    assert admin_token(path) == token
    for mode, text, message in (
        (0o640, token, "mode 640"),
        (0o600, "short\n", "one word of at least 16"),
    ):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(OutriderError, match=message):
            admin_token(path)
    with pytest.raises(OutriderError, match="cannot be read or written"):
        admin_token(tmp_path / "nowhere" / "token")


def test_a_socket_that_somebody_answers_at_is_not_taken(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "admin"))
    with contextlib.closing(bind_socket(address)):
        assert (tmp_path / "admin").stat().st_mode & 0o777 == 0o600
        with pytest.raises(OutriderError, match="another server listens there"):
            bind_socket(address)
    bind_socket(address).close()  # its server is gone
