"""A `vllm serve` process on this machine: start, health check, counters, stop.

    log = Path("server.log")
    drafting = Drafting(Speculator.from_name(directory), k=3)
    with Server(TargetConfig(), EngineConfig(), drafting, log_path=log) as server:
        complete(server.url, ...)
        print(server.counters().acceptance_length)

Several servers can run at once; their idle threads do not spin (`engine_environment`).
"""

import functools
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.process_tree import Child
from outrider.serving.admin.address import Address
from outrider.serving.admin.swap import swap_directory
from outrider.serving.client import (
    KvCache,
    SpeculationCounters,
    post,
    read_counters,
    read_kv_cache,
)
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.hooked import SWAP_EXTENSION
from outrider.serving.speculator import Drafting
from outrider.serving.vllm_arguments import (
    engine_environment,
    serve_arguments,
    start_limit_environment,
    start_limit_s,
)
from outrider.serving.vllm_command import COMMAND

HOST = "127.0.0.1"
_STOP_S = 15.0
"""Time from SIGTERM to SIGKILL, in seconds."""
_RESET_S = 10.0
"""Time limit for freeing the last requests' KV-cache blocks, in seconds."""


class Server:
    """Runs `vllm serve` as a context manager; exiting ends all its processes."""

    def __init__(
        self,
        target: TargetConfig,
        engine: EngineConfig,
        drafting: Drafting | None = None,
        *,
        log_path: Path,
    ) -> None:
        self.model_name = Path(target.model).name
        self.log_path = Path(log_path)
        # While this socket is bound, no other process is given the port; vLLM can still bind to it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((HOST, 0))
        port = self._reserved.getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        self._checkpoint = target.directory()
        self.swap_seconds: float | None = None
        """Duration of the last `swap`."""
        self._prefix_caching = engine.prefix_caching
        self.recomputes_last_block = (
            drafting is not None and drafting.speculator.drafter_kind.has_weights
        )
        """Whether a prefix is used from the cache without its last block: a drafter with weights
        reads the target's states, which are not cached (`use_eagle_block_drop` in
        vllm/config/speculative.py:1950)."""
        words = serve_arguments(target, engine, drafting)
        words += ["--host", HOST, "--port", str(port), "--served-model-name", self.model_name]
        if drafting is not None and drafting.speculator.speculates:
            # The flag makes each response report its counts, which survive an interrupted pass.
            words += ["--per-request-spec-decode-metrics", "summary"]
        self._started_with = drafting.speculator.directory if drafting is not None else None
        if drafting is not None and drafting.speculator.trainable:
            words += ["--worker-extension-cls", SWAP_EXTENSION]
        self.command = [*COMMAND, "serve", *words]
        # Development mode opens /collective_rpc for swaps; only this machine can reach the server.
        self._environment = (
            start_limit_environment(self._checkpoint)
            | engine_environment(engine)
            | {"VLLM_SERVER_DEV_MODE": "1"}
        )

    def start(self) -> None:
        """Starts the processes and returns when the server is healthy.

        Raises an `OutriderError` with the log's root error if the server ends or takes too long.
        """
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Starts the processes; `wait_until_healthy` must follow."""
        self._child = Child(
            self.command, self.log_path, "vllm serve", os.environ | self._environment
        )

    def wait_until_healthy(self) -> None:
        """Waits for a launched server; ends it and raises the errors of `start`."""
        try:
            self._child.wait_until(
                Address.parse(self.url).healthy, start_limit_s(self._checkpoint), root_error
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server: SIGTERM, so that vLLM frees its shared memory, then SIGKILL."""
        self._child.stop(_STOP_S)
        self._reserved.close()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def counters(self) -> SpeculationCounters:
        """The engine's counts since its start."""
        return read_counters(self.url)

    @functools.cached_property
    def kv_cache(self) -> KvCache:
        """Size of an engine's KV cache."""
        return read_kv_cache(self.url)

    def swap(self, directory: Path) -> None:
        """Loads the speculator in `directory`. No request may be running.

        Raises an `OutriderError` if the swap is refused; the previous speculator then stays in use.
        """
        began = time.monotonic()
        assert self._started_with is not None  # only drafters with weights are swapped
        swap_directory(self._rpc, directory, self._started_with, self._checkpoint)
        # Cached prefixes hold the old drafter's keys, which lower the acceptance length: 3.91
        # instead of 3.97 tokens per step.
        self.reset_prefix_cache()
        self.swap_seconds = time.monotonic() - began

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, if the engine has one. No request may be running."""
        if not self._prefix_caching:
            return
        deadline = time.monotonic() + _RESET_S
        while not post(self.url, "/reset_prefix_cache", {})["success"]:
            if time.monotonic() > deadline:
                raise OutriderError(
                    f"{self.url}: the prefix cache was not emptied within {_RESET_S:.0f} s, because"
                    f" requests are running; {self.log_path} has vLLM's reason"
                )
            time.sleep(0.05)

    def _rpc(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        answer = post(self.url, "/collective_rpc", {"method": method, "kwargs": arguments})
        return list(answer["results"])


def root_error(log: str) -> str:
    """Returns the root cause in a vLLM log: the first engine traceback.

    A worker's error ends the engine core, which ends the server. Each logs a traceback; the last
    only reports that the engine core failed. Fallback: the last traceback or the end of the log.
    """
    lines = log.splitlines()
    starts = [n for n, line in enumerate(lines) if "Traceback (most recent call last):" in line]
    if not starts:
        return "\n".join(lines[-25:])
    start = next((n for n in starts if re.match(r"\(\w*(Worker|EngineCore)", lines[n])), starts[-1])
    # Each line begins with process, time and source; lines of several processes interleave.
    before = lines[start].partition("Traceback")[0]
    process = before.partition(")")[0]
    texts = [line[len(before) :] for line in lines[start:] if line.startswith(process)]
    # A traceback ends with its first line that is not indented: the error's type and message.
    last = next((n for n, text in enumerate(texts) if n and not text.startswith(" ")), len(texts))
    return "\n".join(texts[: last + 1])
