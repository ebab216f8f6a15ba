"""The route of a live server that exchanges its speculator: /v1/admin/speculator.

vLLM's own routes for weights need its development mode, whose other routes run any method of a
worker and are not guarded by --api-key. This one is an endpoint plugin below /v1, so the key guards
it. It answers nothing on a server with neither a key nor a Unix socket, unless that is in
development mode, where all is open.

    VLLM_PLUGINS=outrider,outrider_speculator OUTRIDER_RELEASE_ROOTS=/srv/releases \\
        vllm serve ... --api-key KEY --weight-transfer-config '{"backend": "safetensors"}'

The client is serving/live/replica.py. Bundles are safetensors below the release roots, nothing
else is read.
"""

import dataclasses
import os
from argparse import Namespace
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from vllm.engine.protocol import EngineClient

from outrider.common.errors import OutriderError
from outrider.serving.live.live_flags import BACKEND, release_roots
from outrider.serving.live.replica import REQUESTS, ROUTE, Watch
from outrider.serving.vllm_hooks.live_requests import RequestLog
from outrider.serving.vllm_hooks.live_speculator import LiveSpeculator, SwapOrder


class WatchBody(BaseModel):
    """`Watch` of serving/live/replica.py."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    requests: Annotated[int, Field(ge=2)]
    min_tokens_per_step: Annotated[float, Field(ge=1)]
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05


class SwapBody(BaseModel):
    """The body of a POST."""

    model_config = ConfigDict(extra="forbid")

    directory: Annotated[str, Field(min_length=1, max_length=4096)]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+-]{1,128}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    cache: Literal["clear", "keep"] = "clear"
    watch: WatchBody | None = None

    def order(self) -> SwapOrder:
        """As the engine takes it."""
        watch = Watch(**self.watch.model_dump()) if self.watch is not None else None
        return SwapOrder(self.directory, self.version, self.digest, self.cache, watch)


class AdminRoute:
    """Entry point of the group `vllm.endpoint_plugins`; loaded where VLLM_PLUGINS names it."""

    name = "outrider_speculator"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._live: LiveSpeculator | None = None
        self._requests: RequestLog | None = None
        self._refusal = "the server is starting"

    def attach_router(self, app: FastAPI) -> None:
        """Adds the three operations."""
        app.add_api_route(ROUTE, self.status, methods=["GET"])
        app.add_api_route(ROUTE, self.swap, methods=["POST"])
        app.add_api_route(REQUESTS, self.requests, methods=["GET"])

    async def init_state(
        self, engine_client: EngineClient | None, state: Any, args: Namespace
    ) -> None:
        """Connects the route to the engine, unless something is wrong with the server's flags."""
        client: Any = engine_client
        refusal = _refusal(client, args)
        self._refusal = refusal or ""
        if refusal is None:
            self._requests = RequestLog(client.output_processor)
            self._live = LiveSpeculator(client, self._requests, release_roots())

    async def status(self) -> JSONResponse:
        """GET: the speculator in use."""
        if self._live is None:
            return self._refused()
        try:
            return JSONResponse(dataclasses.asdict(await self._live.status()))
        except OutriderError as error:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, error)

    async def swap(self, body: SwapBody) -> JSONResponse:
        """POST: exchanges the speculator; 409 with the reason where the old one stays."""
        if self._live is None:
            return self._refused()
        try:
            return JSONResponse(dataclasses.asdict(await self._live.swap(body.order())))
        except OutriderError as error:
            return _error(HTTPStatus.CONFLICT, error)
        except RuntimeError as error:  # of the engine: its message names the worker's log
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, error)

    async def requests(self, after: Annotated[int, Query(ge=0)] = 0) -> JSONResponse:
        """GET: finished requests from index `after` on."""
        if self._requests is None:
            return self._refused()
        found, following = self._requests.after(after)
        return JSONResponse(
            {"requests": [dataclasses.asdict(each) for each in found], "next": following}
        )

    def _refused(self) -> JSONResponse:
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, self._refusal)


def _refusal(client: Any, args: Namespace) -> str | None:
    """What is wrong with a server's flags; None if nothing is."""
    key = getattr(args, "api_key", None) or os.environ.get("VLLM_API_KEY")
    guarded = key or getattr(args, "uds", None)
    if not guarded and os.environ.get("VLLM_SERVER_DEV_MODE", "0") != "1":
        return "start the server with --api-key, or with --uds and a folder of its own"
    if client is None:
        return "this server has no engine"
    if (getattr(args, "api_server_count", None) or 1) > 1:
        return "start the server with --api-server-count 1: each of several has its own requests"
    transfer = client.vllm_config.weight_transfer_config
    if transfer is None or transfer.backend != BACKEND:
        return f'start the server with --weight-transfer-config \'{{"backend": "{BACKEND}"}}\''
    if client.vllm_config.speculative_config is None:
        return "start the server with a speculator"
    return None


def _error(status: HTTPStatus, error: object) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status)
