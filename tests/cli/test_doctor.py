"""Rows of `outrider doctor` about GPUs, which the machine need not have, and kinds' packages."""

from pathlib import Path

import pytest

from outrider.cli import doctor as module
from outrider.pipeline.provenance import Gpu
from outrider.speculators.kinds.protocol import DrafterKind
from outrider.speculators.kinds.suffix_package import INSTALL


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


class Needy(DrafterKind):
    """A kind for which vLLM needs a package."""

    name = "needy"
    in_words = "a needy kind"
    package = "needs"
    installed: str | None = None

    def package_version(self) -> str | None:
        return self.installed

    def install_package(self) -> None:
        assert self.installed is None
        self.installed = "2.0"


def test_packages_of_kinds_are_installed_once(monkeypatch, capsys) -> None:
    kind = Needy()
    monkeypatch.setattr(module, "kinds_with_package", lambda: [kind])
    fix = "not installed, so it is not measured; outrider doctor --install-needy"
    assert module._package_of(kind) == module.Finding(kind.in_words, "note", fix)
    for _ in range(2):
        module._install_packages()
    assert capsys.readouterr().err == "a needy kind: downloading and compiling; a minute\n"
    assert module._package_of(kind) == module.Finding(kind.in_words, "ok", "needs 2.0")


def test_the_commands_of_messages_are_options() -> None:
    assert INSTALL.removeprefix("outrider doctor ") in module._INSTALL_OPTIONS
