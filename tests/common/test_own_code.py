"""Functions that a recipe names: their file, without running it, and their import."""

import json
import sys
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.common.own_code import code_file, load_function

KEY = "eval.task"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("posixpath", "not a function"),
        ("no_such_module:f", "No module named 'no_such_module'; name a module:function"),
        ("posixpath:jion", "no attribute 'jion'; name a module:function"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(OutriderError, match=f"{KEY} = '{name}': .*{message}"):
        load_function(name, KEY)


def test_the_current_folder_replaces_no_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "folder_checks.py").write_text("def solved(prompt, response):\n    return True\n")
    assert load_function("folder_checks:solved", KEY)("", "") is True
    assert sys.path[-1] == str(tmp_path)


PACKAGE = "import pathlib\npathlib.Path('ran').touch()\n"


@pytest.mark.parametrize("initializers", [(), ("outer",), ("outer", "outer/inner")])
def test_the_file_is_found_without_running_anything(
    initializers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In packages with and without `__init__.py`, and installed, in the folder or Outrider's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for path in (*(f"{folder}/__init__.py" for folder in initializers), "outer/inner/checks.py"):
        (tmp_path / path).write_text(PACKAGE)
    file = tmp_path / "outer" / "inner" / "checks.py"
    assert code_file("outer.inner.checks:solved", KEY) == str(file)
    assert not (tmp_path / "ran").exists() and "outer" not in sys.modules
    tasks = code_file("outrider.recipes.nano_r1.tasks:resume_correct", KEY)
    assert tasks.endswith("nano_r1/tasks.py")
    assert code_file("json.decoder:JSONDecoder", KEY) == json.decoder.__file__


@pytest.mark.parametrize(
    "name", ["", ":f", "gone:f", "posixpath.join", "json.gone:f", "outrider.gone:f"]
)
def test_no_file(name: str) -> None:
    with pytest.raises(OutriderError, match="No module named"):
        code_file(name, KEY)
