"""What each stage would do now: `train-speculator --recipe R --dry-run`.

    for row in plan(run, recipe, ["train"], {}, price(run, recipe)): print(row.stage, row.action)

What it costs is in training_cost.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

from outrider.eval.report.formatting import duration
from outrider.pipeline.plan.traffic import lost_ends_text
from outrider.pipeline.preflight import has_weights, local_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options
from outrider.pipeline.stages.registry import stage_of


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """One row of the plan."""

    stage: str
    action: str
    cost: str
    """Time by part and what length limits cut; empty for a stage that would be skipped."""


def plan(
    run: RunDirectory, recipe: Recipe, wanted: list[str], options: Options, priced: dict[str, Any]
) -> list[PlannedStage]:
    """What each wanted stage would do now, in order; `priced` is the estimate of `price`."""
    target = local_target(recipe)
    rows: list[PlannedStage] = []
    will_run: set[str] = set()
    for name in wanted:
        action = _why_it_runs(name, run, recipe, options, target, will_run)
        if action is None:
            rows.append(PlannedStage(name, "nothing changed, would be kept", ""))
            continue
        will_run.add(name)
        parts = priced.get("stages", {}).get(name, {})
        texts = [f"{part} {duration(seconds)}" for part, seconds in parts.items() if seconds]
        if len(texts) > 1:
            texts = [f"{duration(sum(parts.values()))}: {', '.join(texts)}"]
        if name in ("capture", "train", "evaluate"):
            texts.append(lost_ends_text(name, run, recipe))
        rows.append(PlannedStage(name, action, "; ".join(filter(None, texts))))
    return rows


def _why_it_runs(
    name: str,
    run: RunDirectory,
    recipe: Recipe,
    options: Options,
    target: Path | None,
    will_run: set[str],
) -> str | None:
    """Why a stage would run; None if it would be skipped."""
    stage = stage_of(name, recipe)
    after = [needed for needed in stage.needs if needed in will_run]
    if after:
        return f"would run after {', '.join(after)}"
    if target is None:
        return "would run; the target is not on this machine yet and would be downloaded"
    # Without the weights, `stage.state` would start the download of a hub model.
    if not has_weights(target):
        return "would run; the target's weights are not on this machine yet"
    state = stage.state(run, recipe, options)
    return None if state.done else f"would run: {'; '.join(state.reasons)}"
