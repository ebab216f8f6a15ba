"""`train-speculator --rehearse`: every stage at R1's widths on a random target that fits here.

    loaded = rehearsal("r1/resume_screening", (), console)
    found = rehearse(loaded, run, ["ingest", ..., "export"], console)

What is shown: each stage runs at real widths, up to a verdict (random weights give none worth
having), and memory and disk are what `--dry-run` predicts. The export is forced, so that it runs
too. Nothing is learned about the quality of a speculator or about speed.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.eval.report.formatting import bytes_text
from outrider.pipeline.attempt import attempt
from outrider.pipeline.plan.training_cost import memories, price
from outrider.pipeline.preflight import check, local_target
from outrider.pipeline.recipe.load import LoadedRecipe, load_recipe
from outrider.pipeline.rehearsal.settings import R1_CONFIG, cut_to_fit, rehearsal_words
from outrider.pipeline.rehearsal.target import random_target
from outrider.pipeline.run_dir import RunDirectory
from outrider.speculators.config import AUTO
from outrider.speculators.kinds import DEFAULT_KIND
from outrider.speculators.size import RowShape

if TYPE_CHECKING:
    from rich.console import Console

TOLERANCE = 0.1
"""Largest accepted relative difference between a prediction and the measurement."""

RETURN_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""glibc keeps freed memory by default, and a peak would include it."""


def rehearsal(recipe: str, overrides: Sequence[str], console: "Console") -> LoadedRecipe:
    """The recipe's rehearsal, its random target written if it is not in the cache."""
    import torch

    gpus = torch.cuda.device_count()
    original = load_recipe(recipe).recipe
    words = [*rehearsal_words(original, gpus), *overrides]
    # Any local target will do until the cut is known.
    planned = load_recipe(recipe, [*words, "target.model=nano_r1"]).recipe
    if not isinstance(planned.speculator.kind, str) or planned.speculator.kind == AUTO:
        raise OutriderError(
            f"--rehearse: speculator.kind = {planned.speculator.kind}, but a rehearsal trains one"
            f" kind; name it, such as speculator.kind={DEFAULT_KIND}, and rehearse each"
        )
    target = local_target(original)
    available = memories()[0].bytes if gpus else psutil.virtual_memory().available
    config = read_json(target / "config.json" if target else R1_CONFIG)
    config, experts = cut_to_fit(config, planned, available, gpus)
    console.print(
        f"rehearsal: {experts} experts on {gpus or 'no'} GPUs, {available / 1e9:.1f} GB of memory"
        " available",
        highlight=False,
    )
    directory = random_target(config)
    loaded = load_recipe(recipe, [*words, f"target.model={directory}"])
    check(loaded.recipe)
    return loaded


def rehearse(
    loaded: LoadedRecipe, run: RunDirectory, wanted: Sequence[str], console: "Console"
) -> dict[str, Any]:
    """Runs the stages, compares memory and disk, and returns the line for scripts.

    Writes rehearsal.json into the run directory.
    """
    from rich.table import Table

    began = time.monotonic()
    os.environ.update(RETURN_FREED_MEMORY)
    with attempt(loaded, run) as go:
        go(list(wanted), {"force": True})
    trained = run.result_of("split")["train"]
    # One sequence fills a row of the rehearsal.
    length, anchors = (
        trained[key] // trained["sequences"] for key in ("tokens", "completion_tokens")
    )
    shape = RowShape.of_sequences([(length, anchors)])
    rows = compared(price(run, loaded.recipe, row=shape), run)
    table = Table(title="rehearsal: --dry-run against measured", title_justify="left")
    for column in ("", "predicted", "measured", "difference", "within 10 %"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        cells = bytes_text(row["predicted"]), bytes_text(row["measured"]), f"{row['off']:+.1%}"
        table.add_row(name, *cells, "yes" if row["holds"] else "NO")
    console.print(table)
    result = {
        "recipe": loaded.recipe.name,
        "run_dir": str(run.root),
        "seconds": round(time.monotonic() - began),
        "verdict": run.result_of("evaluate").get("verdict"),
        "compared": rows,
        "holds": all(row["holds"] for row in rows.values()),
    }
    write_json(Path(run.root) / "rehearsal.json", result)
    return result


def compared(priced: dict[str, Any], run: RunDirectory) -> dict[str, dict[str, Any]]:
    """Bytes of training's memory, states, checkpoint and speculator: predicted and measured.

    Measured memory is that of a process on a CPU (VmHWM), and what torch has allocated on a GPU.
    """
    [checkpoint] = (run.training / "checkpoints").glob("step-*")
    trained = read_json(run.training / "result.json")
    memory = priced["memory"][0]
    phases = {
        phase: sum(size for part, size in parts.items() if part != "cuda_context_assumed")
        for phase, parts in memory["phases"].items()
    }
    pairs = {
        "memory of the training process": (max(phases.values()), trained["peak_bytes"]),
        "its start": (phases["start"], trained["start_peak_bytes"]),
        "states on disk": (priced["features"]["bytes"], _folder_bytes(run.features, "shard-*")),
        "a training checkpoint": (priced["checkpoint_bytes"], _folder_bytes(checkpoint)),
        "the speculator": (priced["speculator_bytes"], _folder_bytes(run.speculator)),
    }
    rows = {}
    for name, (predicted, measured) in pairs.items():
        off = predicted / measured - 1
        rows[name] = {
            "predicted": predicted,
            "measured": measured,
            "off": round(off, 4),
            "holds": abs(off) <= TOLERANCE,
        }
    return rows


def _folder_bytes(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())
