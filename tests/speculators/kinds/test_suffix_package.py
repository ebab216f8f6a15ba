"""Installing suffix lookup: what goes wrong names its fix, and the real build drafts."""

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.kinds.suffix_package import install_suffix, installed_suffix

DRAFTS = """
import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache
cache = SuffixDecodingCache(24, -1)
cache.start_request("before", np.array([], np.int32))
cache.add_active_response("before", np.arange(10, dtype=np.int32))
cache.stop_request("before")
cache.start_request("now", np.array([99], np.int32))
print(cache.speculate("now", np.array([2, 3, 4], np.int32), max_spec_tokens=2).token_ids)
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip downloads from: an empty folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_without_the_files_the_places_to_name_are_named(index: Path) -> None:
    with pytest.raises(OutriderError) as raised:
        install_suffix()
    message = str(raised.value)
    assert "could not download arctic-inference==0.1.1 and nanobind==3.1.0: ERROR: Could not" in (
        message
    )
    assert "PIP_INDEX_URL" in message and "PIP_FIND_LINKS" in message
    assert "\n" not in message


def test_another_file_of_that_name_is_not_used(index: Path) -> None:
    (index / "arctic_inference-0.1.1.tar.gz").write_bytes(b"not that file")
    with pytest.raises(OutriderError, match=r"SHA-256 differs.*PIP_INDEX_URL"):
        install_suffix()


def test_without_a_compiler_its_package_is_named(index: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -pthread")
    with pytest.raises(OutriderError, match=r"no-such-compiler -pthread.*apt install g\+\+"):
        install_suffix()


def test_a_module_without_metadata_counts_as_installed(tmp_path: Path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "arctic_inference"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    assert installed_suffix() is None
    monkeypatch.delitem(sys.modules, "arctic_inference.suffix_decoding")
    package = tmp_path / "arctic_inference" / "suffix_decoding"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_suffix()
    for name in ("arctic_inference", "arctic_inference.suffix_decoding"):
        del sys.modules[name]  # monkeypatch would restore them


@pytest.mark.slow
def test_the_build_drafts_and_has_its_licences(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_TARGET", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    try:
        install_suffix()
    except OutriderError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(str(error))
    command = [sys.executable, "-c", DRAFTS]
    drafted = subprocess.run(command, capture_output=True, text=True, check=True)
    assert drafted.stdout == "[5, 6]\n"
    [info] = tmp_path.glob("arctic_inference-0.1.1+suffix.dist-info")
    assert not (info / "entry_points.txt").exists()
    for licence, owner in (("LICENSE", "Apache License"), ("LICENSE.nanobind", "Wenzel Jakob")):
        assert owner in (info / "licenses" / licence).read_text()
    modules = sorted(path.name for path in (tmp_path / "arctic_inference").rglob("*.py"))
    assert modules == ["__init__.py", "__init__.py", "cache.py", "simulator.py"]
