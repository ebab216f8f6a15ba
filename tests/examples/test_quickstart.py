"""The notebook of examples/: its calls exist, and it reaches a verdict."""

import ast
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import outrider

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def code_cells() -> list[str]:
    """The source of each cell with code."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


def test_the_notebook_makes_the_six_calls_of_the_package() -> None:
    tree = ast.parse("\n".join(code_cells()))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    attributes = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    called = {node.attr for node in attributes if ast.unparse(node.value) == "outrider"}
    functions = {name for name in outrider.__all__ if inspect.isfunction(getattr(outrider, name))}
    # The six are made of `open`; the other two need a live endpoint.
    assert called == functions - {"open", "deploy", "adapt_endpoint"}


def test_the_notebook_names_what_exists() -> None:
    tree = ast.parse("\n".join(code_cells()))
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    modules = {
        name.name: importlib.import_module(f"{node.module}.{name.name}")
        for node in imported
        if node.module.startswith("outrider.")
        for name in node.names
    }
    assert modules
    used = [
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    assert [
        name for name in used if name[0] in modules and not hasattr(modules[name[0]], name[1])
    ] == []


@pytest.mark.slow
@pytest.mark.engine
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=3600, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) >= 3
    assert (tmp_path / "bundles" / "quickstart" / "bundle.json").is_file()


def test_the_notebook_shows_its_outputs() -> None:
    """Those of `make notebook`, which name no folder of the machine that ran it."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 3
    assert "outrider init nano_r1" in str(outputs)
    assert not re.search(r"[\"' ](?:/tmp|/root|/home|/Users)/", text)
