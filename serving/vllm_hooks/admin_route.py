"""The admin route of a live server, which swaps its speculator.

The route is not on the address that customers reach: it has its own listener, a Unix socket
with mode 0600, and its own token. It runs in the API server's event loop.

    OUTRIDER_ADMIN=unix:/run/outrider/a.admin.sock OUTRIDER_ADMIN_TOKEN_FILE=/srv/r1/admin.token \\
        OUTRIDER_RELEASE_ROOTS=/srv/r1/releases \\
        vllm serve ... $(python -m outrider.serving.admin.live_flags)

The client is serving/admin/replica.py. Only safetensors bundles below the release roots are read.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import os
import socket
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from outrider.common.errors import OutriderError
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import ADMIN, ROOTS, TOKEN_FILE, admin_token
from outrider.serving.admin.replica import REQUESTS, ROUTE, SwapOrder
from outrider.serving.admin.swap import SpeculatorBroken, unswappable
from outrider.serving.hooked import SWAP_EXTENSION
from outrider.serving.vllm_hooks.live_speculator import LiveSpeculator
from outrider.serving.vllm_version import version_refusal, vllm_version


class AdminRoute:
    """A vLLM endpoint plugin (plugin.py) that adds nothing to vLLM's own application."""

    name = "outrider_speculator"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._live: LiveSpeculator | None = None
        self._refusal: str | None = None
        self._listener: asyncio.Task[None] | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Adds nothing, because customers can reach this application."""

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Starts listening; with unsuitable server flags, refuses requests and names the fix.

        Raises an `OutriderError` if the address is no Unix socket or in use, or the token file is
        invalid.
        """
        try:
            address = Address.parse_socket(os.environ[ADMIN])
        except ValueError as error:
            raise OutriderError(f"{ADMIN}={os.environ[ADMIN]}: {error}") from None
        if TOKEN_FILE not in os.environ:
            raise OutriderError(
                f"{ADMIN} is set without {TOKEN_FILE}, the route's token file; set it to the"
                " endpoint's state_dir/admin.token"
            )
        if (getattr(args, "api_server_count", None) or 1) > 1:
            raise OutriderError(
                f"{ADMIN} needs --api-server-count 1: each API server sees only its own requests"
            )
        app = self.app(admin_token(Path(os.environ[TOKEN_FILE])))
        self._refusal = _refusal(engine_client)
        if self._refusal is None:
            roots = [Path(root) for root in os.environ.get(ROOTS, "").split(os.pathsep) if root]
            try:
                self._live = LiveSpeculator(engine_client, roots, args)
            except Exception as error:  # the engine can still serve
                self._refusal = f"the speculator in use cannot be read, so not swapped: {error}"
        self._listener = asyncio.create_task(_listen(app, bind_socket(address)))

    def app(self, token: str) -> FastAPI:
        """Returns the application: three operations for clients with the token."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        expected = f"Bearer {token}".encode()

        @app.middleware("http")
        async def authenticated(
            request: Request, call_next: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            authorization = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(authorization, expected):
                return _error(
                    HTTPStatus.UNAUTHORIZED,
                    f"the token differs from that in this server's {TOKEN_FILE}; it must be the"
                    " endpoint's state_dir/admin.token",
                )
            return await call_next(request)

        app.add_api_route(ROUTE, self.status, methods=["GET"])
        app.add_api_route(ROUTE, self.swap, methods=["POST"])
        app.add_api_route(REQUESTS, self.requests, methods=["GET"])
        return app

    async def status(self) -> JSONResponse:
        """GET: returns the speculator in use; 503 if `broken` (workers may have wrong weights)."""
        return await self._answer(LiveSpeculator.status)

    async def swap(self, order: SwapOrder) -> JSONResponse:
        """POST: swaps the speculator; 409 with the reason if refused."""
        return await self._answer(LiveSpeculator.swap, order)

    async def requests(self, after: Annotated[int, Query(ge=0)] = 0) -> JSONResponse:
        """GET: returns finished requests from index `after` on."""
        return await self._answer(LiveSpeculator.finished, after)

    async def _answer(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> JSONResponse:
        if self._live is None:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, self._refusal)
        try:
            answer = dataclasses.asdict(await work(self._live, *arguments))
        except Exception as error:  # engine errors too: their message names the worker's log
            refused = isinstance(error, OutriderError) and not isinstance(error, SpeculatorBroken)
            status = HTTPStatus.CONFLICT if refused else HTTPStatus.INTERNAL_SERVER_ERROR
            return _error(status, error)
        is_broken = answer.get("broken") is not None
        return JSONResponse(answer, HTTPStatus.SERVICE_UNAVAILABLE if is_broken else HTTPStatus.OK)


def bind_socket(address: Address) -> socket.socket:
    """Listens on a Unix socket, which other users cannot reach."""
    assert address.path is not None
    path = Path(address.path)
    if path.is_socket():  # left by a killed server, unless another server answers
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            if probe.connect_ex(address.path) == 0:
                raise OutriderError(f"{ADMIN}={address}: another server listens there; end it")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address.path)
    path.chmod(0o600)
    listener.listen()
    return listener


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to vLLM."""
        yield


async def _listen(app: FastAPI, listener: socket.socket) -> None:
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    with contextlib.closing(listener):
        await _Server(config).serve(sockets=[listener])


def _refusal(client: Any) -> str | None:
    """Why this server cannot swap speculators; None if it can."""
    if untried := version_refusal(vllm_version()):
        return untried
    if client is None:
        return "this server has no engine"
    if not client.vllm_config.parallel_config.worker_extension_cls:
        return f"start the server with --worker-extension-cls {SWAP_EXTENSION}"
    if client.vllm_config.speculative_config is None:
        return "start the server with a speculator"
    return unswappable(client.vllm_config.parallel_config)


def _error(status: HTTPStatus, error: object) -> JSONResponse:
    return JSONResponse({"error": str(error) or repr(error)}, status)
