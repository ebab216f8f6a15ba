"""An engine without vLLM: one worker, which answers as `swap_extension.py` does.

    engine = Engine()
    engine.hangs = {"pause"}
    LiveSpeculator(engine, [Path("/releases")], Namespace())

It imports nothing of Outrider's, so that a server of another revision can have it
(replica_process.py).
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Engine:
    """One worker, with a method that hangs or fails."""

    def __init__(
        self, speculator: Path = Path("/nowhere"), target: Path = Path("/nowhere")
    ) -> None:
        """`speculator`: the directory that the engine was started with; `target`: its model."""
        self.engine_core = self
        self.output_processor = SimpleNamespace(
            _update_stats_from_finished=None, abort_requests=None
        )
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(model=str(target)),
            speculative_config=SimpleNamespace(num_speculative_tokens=3, model=str(speculator)),
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            observability_config=SimpleNamespace(per_request_spec_decode_metrics="summary"),
            parallel_config=SimpleNamespace(
                worker_extension_cls="x", data_parallel_size=1, enable_eplb=False
            ),
        )
        self.hangs: set[str] = set()
        self.fails: set[str] = set()
        self.broken: str | None = None
        self.called: list[str] = []
        self.paused = False
        self.digest = ""
        self.directory = str(speculator)
        self._before = (self.digest, self.directory)

    async def call(self, name: str) -> None:
        self.called.append(name)
        if name in self.hangs:
            await asyncio.Event().wait()
        if name in self.fails:
            raise Exception("Call to collective_rpc method failed")

    async def call_utility_all_async(self, _: str, method: str, *more: Any) -> list[Any]:
        await self.call(method)
        if method == "speculator_load":
            self._before = (self.digest, self.directory)
            self.digest = more[-1]["digest"]
            self.directory = more[-1]["directory"]
        if method == "speculator_take_back":
            self.digest, self.directory = self._before
        report = {"digest": self.digest, "directory": self.directory}
        return [[report | {"error": None, "broken": self.broken}]]

    async def pause_generation(self, **_: Any) -> None:
        self.paused = True
        await self.call("pause")

    async def resume_generation(self) -> None:
        await self.call("resume")
        self.paused = False
