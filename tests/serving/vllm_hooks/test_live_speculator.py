"""Swaps in an engine that does not answer, or that fails half-way.

The engine is a stand-in: a real one that hangs takes its machine's file system along. What the
workers do is tested on a real server (test_live_server.py).
"""

import asyncio
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.admin.replica import LiveRequest, SwapOrder, Watch
from outrider.serving.admin.swap import SpeculatorBroken
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.vllm_hooks import live_speculator
from outrider.serving.vllm_hooks.live_speculator import LiveSpeculator
from outrider.speculators.kinds import KINDS
from tests.serving.exported import write_exported
from tests.serving.vllm_hooks.stand_in_engine import Engine

pytestmark = pytest.mark.anyio

NEW = SwapOrder(directory="/releases/new", version="new", digest="1" * 64)
WATCHED = NEW.model_copy(update={"watch": Watch(requests=200, min_tokens_per_step=2.0)})


@pytest.fixture
def anyio_backend() -> str:
    """The tests' event loop."""
    return "asyncio"


@pytest.fixture(autouse=True)
def held_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Short limits, and files that are read once the event is set."""
    free = threading.Event()
    free.set()

    def read(directory: Path, *_: Any, **_settings: Any) -> Any:
        free.wait()
        return SimpleNamespace(directory=directory, states={}, digest=NEW.digest)

    for name in ("READ_S", "SWAP_S", "ANSWER_S"):
        monkeypatch.setattr(live_speculator, name, 0.2)
    started_with = SimpleNamespace(kind=KINDS["mtp"], directory=Path("/nowhere"))
    monkeypatch.setattr(live_speculator, "read_served", lambda _: started_with)
    monkeypatch.setattr(live_speculator, "read_candidate", read)
    monkeypatch.setattr(live_speculator, "list_differing_arguments", lambda *_: [])
    yield free
    free.set()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def speculator(engine: Engine) -> LiveSpeculator:
    return LiveSpeculator(engine, [Path("/releases")], Namespace())


async def test_files_that_are_not_read_in_time_change_nothing(
    engine: Engine, speculator: LiveSpeculator, held_reads: threading.Event
) -> None:
    held_reads.clear()
    with pytest.raises(OutriderError, match=r"not read within 0\.2 s") as caught:
        await speculator.swap(NEW)
    assert not isinstance(caught.value, SpeculatorBroken)
    assert (await speculator.status()).broken is None
    assert set(engine.called) == {"speculator_report"}
    held_reads.set()
    await speculator.swap(NEW)
    assert (await speculator.status()).version == "new"


@pytest.mark.parametrize("method", ["pause", "speculator_load"])
@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_an_exchange_without_an_answer_ends_broken_and_not_paused(
    engine: Engine, speculator: LiveSpeculator, method: str, fault: str
) -> None:
    setattr(engine, fault, {method})
    with pytest.raises(SpeculatorBroken, match=r"load new: .*start the replica again"):
        await speculator.swap(NEW)
    assert not engine.paused
    setattr(engine, fault, {"speculator_report"})
    assert "load new" in ((await speculator.status()).broken or ""), "without an answer too"
    setattr(engine, fault, set())
    assert "load new" in ((await speculator.status()).broken or "")
    await speculator.swap(NEW)
    assert (await speculator.status()).broken is None


@pytest.mark.parametrize("fault", ["hangs", "fails", "broken"])
async def test_a_take_back_that_fails_is_broken(
    engine: Engine, speculator: LiveSpeculator, fault: str
) -> None:
    await speculator.swap(WATCHED)
    if fault == "broken":
        engine.broken = "not taken back: disk"
    else:
        setattr(engine, fault, {"speculator_take_back"})
    poor = LiveRequest(
        index=0,
        request_id="r",
        version="new",
        finished_at=0.0,
        completion_tokens=20,
        drafts=20,
        accepted=0,
        ttft_s=0.1,
        decode_s=1.0,
        e2e_s=1.1,
        failed=False,
    )
    for _ in range(100):
        speculator._finished(poor)
    await asyncio.wait_for(asyncio.gather(*speculator._tasks), 20)
    status = await speculator.status()
    assert status.broken is not None and "take back" in status.broken
    assert (status.watching, status.reverted, engine.paused) == (False, None, False)


async def test_the_expected_digest_is_compared_before_anything_is_read(
    engine: Engine, speculator: LiveSpeculator
) -> None:
    engine.digest = "2" * 64
    for expected in ("", "1" * 64):
        order = NEW.model_copy(update={"expected": expected})
        with pytest.raises(OutriderError, match="another controller swapped it"):
            await speculator.swap(order)
    assert set(engine.called) == {"speculator_report"}
    await speculator.swap(NEW.model_copy(update={"expected": "2" * 64}))


def test_the_digest_of_a_start_is_of_the_files_and_empty_without_an_intact_bundle(
    tmp_path: Path,
) -> None:
    bundle = write_exported(tmp_path / "bundle")
    assert live_speculator.intact_digest(bundle) == bundle_digest(bundle)
    (bundle / "model.safetensors").write_bytes(b"other weights")
    assert live_speculator.intact_digest(bundle) == ""
    assert live_speculator.intact_digest(tmp_path) == ""


async def test_the_start_is_named_by_its_digest_and_a_swap_expects_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "a" * 64
    monkeypatch.setattr(live_speculator, "intact_digest", lambda _: start)
    speculator = LiveSpeculator(engine, [Path("/releases")], Namespace())
    assert (await speculator.status()).digest == start
    with pytest.raises(OutriderError, match="another controller swapped it"):
        await speculator.swap(NEW.model_copy(update={"expected": ""}))
    await speculator.swap(NEW.model_copy(update={"expected": start}))
    assert (await speculator.status()).digest == NEW.digest
