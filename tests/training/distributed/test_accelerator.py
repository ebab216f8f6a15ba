"""The environment of a training process, on machines with and without GPUs."""

import os

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.training.distributed.accelerator import start_environment


def test_a_build_for_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("DS_ACCELERATOR", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(OutriderError, match=r"build for CUDA 13.0 and sees no GPU; update the"):
        start_environment()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    start_environment()
    assert os.environ["DS_ACCELERATOR"] == "cpu"
    assert "PYTORCH_ALLOC_CONF" not in os.environ
