"""What each stage would do now, and what it would cost: `train-speculator --recipe R --dry-run`.

    for row in plan(run, recipe, ["train"], {}): print(row.stage, row.action, row.cost)

Memory and disk of training are in training_cost.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.pipeline.plan.estimates import (
    capture_cost,
    lost_ends_text,
    time_text,
    traffic_tokens,
    training_cost,
)
from outrider.pipeline.preflight import has_weights, local_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options
from outrider.pipeline.stages.registry import stage_of
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.planned import warms_up

ENGINE_START_S = {"eager": 35, "compiled": 90}
"""Start of the two servers of an engine mode, both at once on 2 cores."""

ONE_START_S = 20
"""Start of one eager engine on 2 cores."""


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """One row of the plan."""

    stage: str
    action: str
    cost: str
    """Empty for a stage that would be skipped."""


def plan(
    run: RunDirectory, recipe: Recipe, wanted: list[str], options: Options
) -> list[PlannedStage]:
    """What each wanted stage would do now, in order."""
    target = local_target(recipe)
    rows: list[PlannedStage] = []
    will_run: set[str] = set()
    for name in wanted:
        action = _why_it_runs(name, run, recipe, options, target, will_run)
        if action is None:
            rows.append(PlannedStage(name, "nothing changed, would be kept", ""))
        else:
            will_run.add(name)
            rows.append(PlannedStage(name, action, _cost(name, run, recipe, target)))
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


def _cost(stage: str, run: RunDirectory, recipe: Recipe, target: Path | None) -> str:
    tokens, counted = traffic_tokens(run, recipe)
    about = "" if counted else "about "
    if stage == "ingest":
        return f"{about}{tokens:,} tokens" if tokens else "size of the log unknown"
    if stage == "capture":
        if not tokens or not target:
            return "tokens x hidden size x 2 bytes of states"
        cost = capture_cost(tokens, recipe, read_json(target / "config.json"))
        return f"{about}{cost}{lost_ends_text(stage, run, recipe)}"
    if stage == "train":
        config = read_json(target / "config.json") if target else None
        return _training_text(tokens, recipe, config) + lost_ends_text(stage, run, recipe)
    if stage == "choose_kind":
        return _choice_text(recipe)
    if stage == "evaluate":
        return _evaluation_text(recipe) + lost_ends_text(stage, run, recipe)
    if stage == "export":
        return "one engine start to verify the bundle" if recipe.export.verify else "unverified"
    return ""


def _training_text(tokens: int, recipe: Recipe, target_config: dict[str, Any] | None) -> str:
    """What training is, of each kind where there are several."""
    kinds = recipe.speculator.kinds
    if len(kinds) > 1:
        each = ((name, recipe.of_kinds([name])) for name in kinds)
        texts = [f"{name}: {_training_text(tokens, one, target_config)}" for name, one in each]
        return f"one after another: {'; '.join(texts)}"
    cost = training_cost(tokens, recipe, target_config)
    text = f"{cost.epochs} epoch{'s' if cost.epochs > 1 else ''}"
    warm = warms_up(recipe.speculator, target_config)
    rate = recipe.training.started(warm).learning_rate
    text += f" at depth {recipe.speculator.depth}, learning rate {rate:g}, rows of"
    text += f" {recipe.training.row_tokens:,} tokens"
    text = f"one engine start for parity, {text}" if warm else f"from scratch, {text}"
    return text + (time_text(cost.seconds, cost.tokens_per_s) if tokens else "")


def _choice_text(recipe: Recipe) -> str:
    servers = len(recipe.speculator.kinds) + 1
    sizes = ", ".join(map(str, recipe.eval.concurrency))
    return (
        f"replay of the validation part for each kind, steps of {servers} servers"
        f" ({recipe.eval.engine_modes[0]}) at concurrency {sizes}"
    )


def _evaluation_text(recipe: Recipe) -> str:
    measured, modes = recipe.eval, recipe.eval.engine_modes
    blocks = len(modes) * len(measured.concurrency) * measured.repeats * 3
    text = f"{blocks} measured blocks in {' and '.join(modes)} mode"
    if len(recipe.speculator.kinds) > 1:
        text = f"for each of the two kinds that choose_kind names: {text}"
    if measured.rates:
        workloads = len(measured.rates) * max(len(measured.scenarios), 1)
        timed = len(modes) * workloads * measured.rate_repeats * 3
        text += f", {timed} of open loop, at least {timed * measured.rate_seconds / 60:.0f} min"
    if recipe.target.model not in EMBEDDED_TARGETS:
        return text
    # Besides the servers: one engine captures the verification pass, one times steps for k: auto.
    starts = sum(ENGINE_START_S[mode] for mode in modes) + ONE_START_S
    if measured.k == "auto":
        starts += ONE_START_S
    return text + f", and {starts} s of engine starts"
