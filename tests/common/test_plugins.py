"""Entry points of other packages are loaded by name; mistakes name the package."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.common.plugins import plugins

GROUP = "outrider.tested"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the metadata of an installed package with entry points, as `NAME = VALUE` lines."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(package: str, *points: str) -> None:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points, ""]))

    return write


def test_they_are_loaded_by_name(install) -> None:
    assert plugins(GROUP, taken=()) == {}
    install("one", "join = posixpath:join")
    install("two", "path = posixpath")
    loaded = plugins(GROUP, taken=("other",))
    assert loaded.keys() == {"join", "path"}
    assert loaded["path"].join is loaded["join"]


@pytest.mark.parametrize("packages", [("one",), ("one", "two")])
def test_no_name_is_used_twice(install, packages: tuple[str, ...]) -> None:
    for package in packages:
        install(package, "join = posixpath:join")
    taken = ["join"] if len(packages) == 1 else []
    with pytest.raises(OutriderError, match=r"package (one|two): .*join = .*the name is taken"):
        plugins(GROUP, taken)


@pytest.mark.parametrize("value", ["no_such_module:f", "posixpath:jion"])
def test_what_cannot_be_loaded_is_named(install, value: str) -> None:
    install("broken", f"join = {value}")
    with pytest.raises(OutriderError, match=f"package broken: .*join = {value}: .*uninstall"):
        plugins(GROUP, taken=())
