"""Rows of `outrider doctor` about GPUs, on a machine that need not have one."""

from pathlib import Path

import pytest

from outrider.cli import doctor as module
from outrider.pipeline.provenance import Gpu


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, on a machine with one GPU and no CUDA toolkit."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "toolkit" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(module, "DEFAULT_CUDA_HOME", str(tmp_path / "default"))
    monkeypatch.setattr(module, "gpus", lambda: [Gpu("NVIDIA L4", 23034, "580.65")])
    return folder


def program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def row() -> module.Finding:
    return next(finding for finding in module._gpus() if finding.what == "nvcc, ninja")


def test_without_nvcc_the_consequence_and_the_fix_are_named(bin_dir: Path) -> None:
    assert row().state == "note"
    assert row().found.startswith("no nvcc and no ninja: vLLM turns FlashInfer and DeepGEMM off")
    program(bin_dir / "ninja")
    assert row().found.startswith("no nvcc: ") and "set CUDA_HOME" in row().found
    assert "activate" not in row().found


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", None])
def test_nvcc_is_found_where_vllm_looks(bin_dir: Path, monkeypatch, variable: str | None) -> None:
    from vllm.utils.flashinfer import _flashinfer_nvcc_path

    program(bin_dir / "ninja")
    home = bin_dir.parents[1] / "home"
    nvcc = program((bin_dir.parent if variable is None else home) / "bin" / "nvcc")
    if variable is not None:
        monkeypatch.setenv(variable, str(home))
    assert row() == module.Finding("nvcc, ninja", "ok", nvcc)
    assert _flashinfer_nvcc_path() == nvcc
    # vLLM ignores a variable's empty value, but not one that names a folder without nvcc.
    monkeypatch.setenv("CUDA_HOME", str(bin_dir / "nothing"))
    assert row().state == "note" and _flashinfer_nvcc_path() is None


def test_without_a_gpu_there_is_no_such_row(monkeypatch) -> None:
    monkeypatch.setattr(module, "gpus", list)
    assert [finding.what for finding in module._gpus()] == ["GPU"]
