"""The notebook of examples/: its calls exist, and it reaches a verdict."""

import ast
import inspect
import json
from pathlib import Path

import pytest

import outrider

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_the_notebook_makes_the_six_calls_of_the_package() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]
    calls = [node for node in ast.walk(ast.parse("\n".join(cells))) if isinstance(node, ast.Call)]
    functions = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    owned = {each.attr for each in functions if ast.unparse(each.value) == "outrider"}
    functions = {name for name in outrider.__all__ if inspect.isfunction(getattr(outrider, name))}
    # The six are made of `open`; the other two need a live endpoint.
    assert owned == functions - {"open", "deploy", "adapt_endpoint"}


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
