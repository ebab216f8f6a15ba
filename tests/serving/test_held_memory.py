"""A process that opens an engine holds no device memory; here, no large tensor."""

from pathlib import Path

import pytest
import torch

from outrider.common.child_process import in_child
from outrider.eval.replay.replay import load_replayed
from outrider.serving import held_memory
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.held_memory import CHECK_CPU, require_no_device_memory


def test_a_large_tensor_stops_the_start_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECK_CPU, "1")
    monkeypatch.setattr(held_memory, "_loaded", [])
    held = torch.zeros(600, 1001, dtype=torch.bfloat16)
    message = r"the engine starts while this process holds tensors: .*bfloat16 \[600, 1001\]"
    with (
        pytest.raises(RuntimeError, match=message),
        open_engine(TargetConfig(), EngineConfig()),
    ):
        pass
    monkeypatch.delenv(CHECK_CPU)
    require_no_device_memory("a server")  # on CPUs it is allowed
    del held


def test_a_process_that_has_loaded_a_model_starts_no_engine(
    monkeypatch: pytest.MonkeyPatch, nano_r1: Path
) -> None:
    monkeypatch.setenv(CHECK_CPU, "1")
    monkeypatch.setattr(held_memory, "_loaded", [])
    in_child(load_replayed, nano_r1, nano_r1, "float32")
    require_no_device_memory("vllm serve")
    load_replayed(nano_r1, nano_r1, "float32")
    with pytest.raises(RuntimeError, match=r"starts in a process that has loaded .*target"):
        require_no_device_memory("vllm serve")


def test_memory_of_a_gpu_always_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 27_000_000_000)
    with pytest.raises(RuntimeError, match=r"holds 27.00 GB of the GPU.*in_child"):
        require_no_device_memory("vllm serve")
