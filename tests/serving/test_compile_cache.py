"""When the background compilation runs. What it leaves in the cache takes minutes to test."""

from pathlib import Path

import pytest

from outrider.serving import compile_cache as module
from outrider.serving.compile_cache import compiling
from outrider.serving.config import ServingConfig, TargetConfig


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to the server, in order."""
    made: list[str] = []

    class Recorder:
        def __init__(self, target, serving, *, log_path):
            made.append(f"{serving.engine.mode}, {log_path.name}")

        def start(self, lowest_priority):
            made.append(f"starts, lowest priority {lowest_priority}")

        def stop(self):
            made.append("stops")

    monkeypatch.setattr(module, "Server", Recorder)
    monkeypatch.setattr(module, "runs_on_cpu", lambda: True)
    return made


def test_a_server_compiles_until_the_context_ends(calls, tmp_path):
    with compiling(TargetConfig(), ServingConfig(), tmp_path / "compile.log"):
        assert calls == ["compiled, compile.log", "starts, lowest priority True"]
    assert calls[2:] == ["stops"]


def test_an_error_inside_stops_it_too(calls, tmp_path):
    with pytest.raises(KeyError), compiling(TargetConfig(), ServingConfig(), Path("compile.log")):
        raise KeyError
    assert calls[-1] == "stops"


def test_a_gpu_s_memory_is_left_to_the_stages(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    with compiling(TargetConfig(), ServingConfig(), tmp_path / "compile.log"):
        pass
    assert calls == []
