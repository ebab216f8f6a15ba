"""On which servers the admin route answers at all."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.serving.live.live_flags import ADMIN_PLUGIN, PLUGINS, ROOTS, live_environment
from outrider.serving.live.replica import REQUESTS, ROUTE

TRANSFER = SimpleNamespace(backend="safetensors")


def client(**config: Any) -> Any:
    shown = {"weight_transfer_config": TRANSFER, "speculative_config": None} | config
    return SimpleNamespace(vllm_config=SimpleNamespace(**shown))


@pytest.mark.parametrize(
    ("flags", "engine", "message"),
    [
        ({}, client(), "--api-key"),
        ({"api_key": ["k"]}, None, "no engine"),
        ({"uds": "/s", "api_server_count": 2}, client(), "--api-server-count 1"),
        ({"api_key": ["k"]}, client(weight_transfer_config=None), "--weight-transfer-config"),
        (
            {"api_key": ["k"]},
            client(weight_transfer_config=SimpleNamespace(backend="nccl")),
            "--weight-transfer-config",
        ),
        ({"api_key": ["k"]}, client(), "with a speculator"),
    ],
)
def test_a_server_without_what_it_needs_answers_with_the_flag(
    flags: dict[str, Any], engine: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from outrider.serving.vllm_hooks.admin_route import AdminRoute

    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("VLLM_SERVER_DEV_MODE", raising=False)
    app, route = FastAPI(), AdminRoute()
    route.attach_router(app)
    asyncio.run(route.init_state(engine, app.state, Namespace(**flags)))
    http = TestClient(app)
    body = {"directory": "/r/a", "version": "a", "digest": "0" * 64, "cache": "keep"}
    for answer in (http.get(ROUTE), http.post(ROUTE, json=body), http.get(REQUESTS)):
        assert answer.status_code == 503
        assert message in answer.json()["error"]


def test_the_environment_names_every_plugin_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv(PLUGINS, raising=False)
    found = live_environment([tmp_path, tmp_path / "b"])
    assert {"outrider", ADMIN_PLUGIN} <= set(found[PLUGINS].split(","))
    assert found[ROOTS] == f"{tmp_path}:{tmp_path / 'b'}"
    monkeypatch.setenv(PLUGINS, "theirs,outrider")
    assert live_environment([])[PLUGINS] == f"theirs,outrider,{ADMIN_PLUGIN}"
