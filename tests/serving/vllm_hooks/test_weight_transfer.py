"""Engines in which a swap could fail unseen refuse it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outrider.serving.vllm_hooks import weight_transfer
from outrider.serving.vllm_hooks.weight_transfer import SafetensorsTransfer


def transfer(
    speculator: Path, monkeypatch: pytest.MonkeyPatch, ranks: int = 1, eplb: bool = False
) -> Any:
    monkeypatch.setattr(weight_transfer, "_add_worker_methods", lambda: None)
    speculative = SimpleNamespace(
        num_speculative_tokens=3, draft_model_config=None, model=str(speculator)
    )
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=ranks, enable_eplb=eplb),
        model_config=SimpleNamespace(model=str(speculator)),
        speculative_config=speculative,
    )
    return SafetensorsTransfer(
        SimpleNamespace(), config, torch.device("cpu"), torch.nn.Linear(1, 1)
    )


@pytest.mark.parametrize(("ranks", "eplb"), [(2, False), (1, True)])
def test_several_ranks_and_moved_experts_refuse_an_exchange(
    ranks: int, eplb: bool, nano_r1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = transfer(nano_r1, monkeypatch, ranks, eplb)
    assert engine.current is None
    with pytest.raises(ValueError, match=r"data parallelism.*EPLB.*start the server with"):
        engine.check(str(nano_r1), None, "")
