"""Runs examples/quickstart.ipynb in an empty folder and stores its outputs in the file.

    make notebook        # 10 to 20 minutes on two cores

Readers see the outputs without running anything. Progress lines on stderr are left out, as are the
times of execution, which differ in every run.
"""

import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
TIMEOUT_S = 3600
"""Of a cell. The longest, training, takes minutes."""


def shown_outputs(outputs: list[Any]) -> list[Any]:
    """Outputs without stderr; consecutive lines of stdout are one output."""
    shown: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and shown and shown[-1].output_type == "stream":
            shown[-1].text += output.text
            continue
        shown.append(output)
    return shown


def run_notebook(path: Path) -> None:
    """Executes the cells of `path` and writes their outputs back.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails; the file stays as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(
            notebook, timeout=TIMEOUT_S, resources=resources, record_timing=False
        ).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = shown_outputs(cell.outputs)
        text = nbformat.writes(notebook)
        if folder in text:
            raise ValueError(f"an output names the folder {folder}; print relative paths")
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_notebook(NOTEBOOK)
