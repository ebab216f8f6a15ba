"""When the background compilation runs. What it leaves in the cache takes minutes to test."""

import sys
from pathlib import Path

import pytest

from outrider.common.process_tree import members, wait_until
from outrider.serving import compile_cache as module
from outrider.serving.compile_cache import compiling
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import Server


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to the server, in order."""
    made: list[str] = []

    class Recorder:
        def __init__(self, target, serving, *, log_path):
            made.append(f"{serving.engine.mode}, {log_path.name}")

        def start(self, lowest_priority):
            made.append(f"starts, lowest priority {lowest_priority}")

        def stop(self, at_once):
            made.append(f"stops, at once {at_once}")

    monkeypatch.setattr(module, "Server", Recorder)
    monkeypatch.setattr(module, "runs_on_cpu", lambda: True)
    return made


def test_a_server_compiles_until_the_context_ends(calls, tmp_path):
    with compiling(TargetConfig(), ServingConfig(), tmp_path / "compile.log"):
        assert calls == ["compiled, compile.log", "starts, lowest priority True"]
    assert calls[2:] == ["stops, at once True"]


def test_an_error_inside_stops_it_too(calls, tmp_path):
    with pytest.raises(KeyError), compiling(TargetConfig(), ServingConfig(), Path("compile.log")):
        raise KeyError
    assert calls[-1] == "stops, at once True"


def test_a_gpu_s_memory_is_left_to_the_stages(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    with compiling(TargetConfig(), ServingConfig(), tmp_path / "compile.log"):
        pass
    assert calls == []


# A server that compiles: it holds shared memory and does not end by SIGTERM.
BUSY = """
import os, signal, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
held = SharedMemory(create=True, size=4096)
idle = not hasattr(os, "SCHED_IDLE") or os.sched_getscheduler(0) == os.SCHED_IDLE
print("holds", held.name, "idle class:", idle, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no folder here")
def test_a_busy_server_is_stopped_at_once_and_its_shared_memory_freed(nano_r1, tmp_path):
    log = tmp_path / "compile.log"
    server = Server(TargetConfig(model=str(nano_r1)), ServingConfig(), log_path=log)
    server.command = [sys.executable, "-c", BUSY]
    server.start(lowest_priority=True)
    share = Path(f"/proc/{server._process.pid}/autogroup")
    assert not share.exists() or share.read_text().split()[1:] == ["nice", "19"]
    assert wait_until(lambda: "idle class" in log.read_text(), 60)
    segment = Path("/dev/shm") / log.read_text().split()[1]
    assert segment.exists() and "idle class: True" in log.read_text()
    server.stop(at_once=True)
    assert not members(server.mark) and not segment.exists()
    assert "SIGTERM" not in log.read_text()
