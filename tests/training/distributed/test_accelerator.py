"""The environment of a training process, on machines with and without GPUs."""

import os

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.training.distributed.accelerator import start_environment

GROWING = "expandable_segments:True"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's, without what is set here; restored at the end."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "DS_ACCELERATOR"):
        os.environ.pop(name, None)


@pytest.mark.parametrize("own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_a_gpus_allocator_grows_its_blocks_unless_set(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if own:
        os.environ[own] = "max_split_size_mb:512"
    start_environment()
    assert os.environ.get("PYTORCH_ALLOC_CONF") == (
        GROWING if own is None else os.environ.get(own) if own == "PYTORCH_ALLOC_CONF" else None
    )
    assert "DS_ACCELERATOR" not in os.environ


def test_a_build_for_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(OutriderError, match=r"build for CUDA 13.0 and sees no GPU; update the"):
        start_environment()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    start_environment()
    assert os.environ["DS_ACCELERATOR"] == "cpu"
    assert "PYTORCH_ALLOC_CONF" not in os.environ
