"""`train-speculator --rehearse`: every stage at R1's widths on a random target that fits here.

    loaded = rehearsal("r1/resume_screening", (), Path("runs"), console)
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
from outrider.pipeline.attempt import attempt
from outrider.pipeline.plan.training_cost import price
from outrider.pipeline.preflight import check, local_target
from outrider.pipeline.recipe.load import LoadedRecipe, load_recipe
from outrider.pipeline.rehearsal.compare import compared, print_peaks, print_rows
from outrider.pipeline.rehearsal.cut import R1_CONFIG, cut_to_fit
from outrider.pipeline.rehearsal.peaks import Peaks
from outrider.pipeline.rehearsal.settings import rehearsal_words
from outrider.pipeline.rehearsal.target import random_target
from outrider.pipeline.run_dir import RunDirectory
from outrider.speculators.config import AUTO
from outrider.speculators.kinds import DEFAULT_KIND

if TYPE_CHECKING:
    from rich.console import Console

RETURN_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""glibc keeps freed memory by default, and a peak would include it."""


def rehearsal(
    recipe: str, overrides: Sequence[str], runs: Path, console: "Console"
) -> LoadedRecipe:
    """The recipe's rehearsal, its random target written if it is not in the cache.

    An interrupted rehearsal keeps its target, however much memory is available now.
    """
    original = load_recipe(recipe).recipe
    words = [*rehearsal_words(original), *overrides]
    # Any local target will do until the cut is known.
    planned = load_recipe(recipe, [*words, "target.model=nano_r1"]).recipe
    if not isinstance(planned.speculator.kind, str) or planned.speculator.kind == AUTO:
        raise OutriderError(
            f"--rehearse: speculator.kind = {planned.speculator.kind}, but a rehearsal trains one"
            f" kind; name it, such as speculator.kind={DEFAULT_KIND}, and rehearse each"
        )
    target = local_target(original)
    config = read_json(target / "config.json" if target else R1_CONFIG)
    if started := _target_of(RunDirectory.of(planned, runs)):
        directory = started
    else:
        available = psutil.virtual_memory().available
        cut = cut_to_fit(config, planned, available)
        console.print(
            f"rehearsal: {cut.experts} experts; training takes about"
            f" {cut.training_bytes / 1e9:.1f} GB, an engine {cut.engine_bytes / 1e9:.1f} GB, of"
            f" {available / 1e9:.1f} GB available",
            highlight=False,
        )
        directory = random_target(cut.config)
    loaded = load_recipe(recipe, [*words, f"target.model={directory}"])
    check(loaded.recipe)
    return loaded


def _target_of(run: RunDirectory) -> Path | None:
    """The target of a rehearsal that was started in this directory."""
    if not run.resolved_recipe.is_file():
        return None
    target = Path(run.read_resolved().target.model)
    return target if (target / "config.json").is_file() else None


def rehearse(
    loaded: LoadedRecipe, run: RunDirectory, wanted: Sequence[str], console: "Console"
) -> dict[str, Any]:
    """Runs the stages, compares memory and disk, and returns the line for scripts.

    Writes rehearsal.json into the run directory.
    """
    began = time.monotonic()
    os.environ.update(RETURN_FREED_MEMORY)
    with attempt(loaded, run) as go, Peaks() as peaks:
        try:
            for name in wanted:
                peaks.stage = name
                go([name], {"force": True})
        finally:
            # Also where a stage failed.
            print_peaks(peaks.by_stage, console)
        priced = price(run, loaded.recipe)
    rows = compared(priced, run, peaks.by_stage)
    print_rows(rows, console)
    result = {
        "recipe": loaded.recipe.name,
        "run_dir": str(run.root),
        "seconds": round(time.monotonic() - began),
        "verdict": run.result_of("evaluate").get("verdict"),
        "compared": [row.as_dict() for row in rows],
        "holds": all(row.holds for row in rows),
        "peaks": {
            stage: {role: vars(peak) for role, peak in roles.items()}
            for stage, roles in peaks.by_stage.items()
        },
    }
    write_json(Path(run.root) / "rehearsal.json", result)
    return result
