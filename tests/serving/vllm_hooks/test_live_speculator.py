"""Swaps in an engine that does not answer, or that fails half-way.

The engine is a stand-in: a real one that hangs takes its machine's file system along. What the
workers do is tested on a real server (tests/live/test_live_server.py).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.admin.replica import LiveRequest, SwapOrder, Watch
from outrider.serving.vllm_hooks.live_requests import RequestLog
from outrider.serving.vllm_hooks.live_speculator import Limits, LiveSpeculator
from outrider.serving.vllm_hooks.swap import SpeculatorBroken

LIMITS = Limits(read=0.2, swap=0.2, answer=0.2)
NEW = SwapOrder(directory="/releases/new", version="new", digest="1" * 64)
WATCHED = NEW.model_copy(update={"watch": Watch(requests=200, min_tokens_per_step=2.0)})


class Engine:
    """One worker, with a method that hangs or fails."""

    def __init__(self) -> None:
        self.engine_core = self
        self.output_processor = SimpleNamespace(
            _update_stats_from_finished=None, abort_requests=None
        )
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=3),
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            observability_config=SimpleNamespace(per_request_spec_decode_metrics="summary"),
        )
        self.hangs: set[str] = set()
        self.fails: set[str] = set()
        self.broken: str | None = None
        self.called: list[str] = []
        self.paused = False
        self.digest = ""

    async def call(self, name: str) -> None:
        self.called.append(name)
        if name in self.hangs:
            await asyncio.Event().wait()
        if name in self.fails:
            raise Exception("Call to collective_rpc method failed")

    async def call_utility_all_async(self, _: str, method: str, *more: Any) -> list[Any]:
        await self.call(method)
        if method == "update_weights":
            self.digest = more[-1]["update_info"]["digest"]
        if method not in ("speculator_report", "speculator_take_back"):
            return [[None]]
        report = {"digest": self.digest, "kind": "mtp", "directory": "/r"}
        times = {"read_s": 0.0, "apply_s": 0.0, "staged": True, "staging_error": None}
        return [[report | times | {"error": None, "broken": self.broken}]]

    async def pause_generation(self, **_: Any) -> None:
        self.paused = True
        await self.call("pause")

    async def resume_generation(self) -> None:
        await self.call("resume")
        self.paused = False


def live(engine: Engine) -> LiveSpeculator:
    return LiveSpeculator(engine, RequestLog(engine.output_processor), [Path("/releases")], LIMITS)


def test_files_that_are_not_read_in_time_change_nothing() -> None:
    engine = Engine()
    engine.hangs = {"init_weight_transfer_engine"}

    async def tried() -> None:
        speculator = live(engine)
        with pytest.raises(OutriderError, match=r"not read within 0\.2 s") as caught:
            await speculator.swap(NEW)
        assert not isinstance(caught.value, SpeculatorBroken)
        assert (await speculator.status()).broken is None
        engine.hangs = set()
        assert (await speculator.swap(NEW)).version == "new"

    asyncio.run(tried())
    assert "pause" not in engine.called[:1]


@pytest.mark.parametrize("method", ["pause", "update_weights", "speculator_report"])
@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_an_exchange_without_an_answer_ends_broken_and_not_paused(method: str, fault: str) -> None:
    engine = Engine()

    async def tried() -> None:
        speculator = live(engine)
        staged = engine.call_utility_all_async

        async def after_staging(*arguments: Any) -> list[Any]:
            answer = await staged(*arguments)
            if arguments[1] == "speculator_report":
                setattr(engine, fault, {method})
            return answer

        engine.call_utility_all_async = after_staging  # type: ignore[method-assign]
        with pytest.raises(SpeculatorBroken, match=r"load new: .*start the replica again"):
            await speculator.swap(NEW)
        assert not engine.paused
        setattr(engine, fault, {"speculator_report"})
        assert "load new" in ((await speculator.status()).broken or ""), "without an answer too"
        engine.call_utility_all_async = staged  # type: ignore[method-assign]
        setattr(engine, fault, set())
        assert "load new" in ((await speculator.status()).broken or "")
        await speculator.swap(NEW)
        assert (await speculator.status()).broken is None

    asyncio.run(tried())


def requests(speculator: LiveSpeculator, count: int) -> None:
    for index in range(count):
        poor = LiveRequest(index, f"r{index}", "new", 0.0, 5, 20, 20, 0, 0.1, 1.0, 1.1, False)
        speculator._finished(poor)


@pytest.mark.parametrize("fault", ["hangs", "fails", "broken"])
def test_a_take_back_that_fails_is_broken(fault: str) -> None:
    engine = Engine()

    async def tried() -> None:
        speculator = live(engine)
        await speculator.swap(WATCHED)
        if fault == "broken":
            engine.broken = "not taken back: disk"
        else:
            setattr(engine, fault, {"speculator_take_back"})
        requests(speculator, 100)
        await ended(lambda: not speculator._tasks)
        status = await speculator.status()
        assert status.broken is not None and "take back" in status.broken
        assert (status.watching, status.reverted, engine.paused) == (False, None, False)

    asyncio.run(tried())


def test_the_expected_digest_is_compared_before_anything_is_read() -> None:
    engine = Engine()
    engine.digest = "2" * 64

    async def tried() -> None:
        speculator = live(engine)
        for expected in ("", "1" * 64):
            order = NEW.model_copy(update={"expected": expected})
            with pytest.raises(OutriderError, match="another controller swapped it"):
                await speculator.swap(order)
        assert set(engine.called) == {"speculator_report"}
        await speculator.swap(NEW.model_copy(update={"expected": "2" * 64}))

    asyncio.run(tried())


async def ended(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
