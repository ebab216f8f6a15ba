"""Shows what each stage would do: `outrider train R --dry-run`.

    rows = plan_stages(run, recipe, ["train"], {}, priced := price(run, recipe))
    print_plan(rows, priced, Console(stderr=True))          # tables within 80 columns

training_cost.py estimates the costs.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.eval.report.formatting import bytes_text, count, duration
from outrider.pipeline.preflight import has_weights, local_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options
from outrider.pipeline.stages.registry import stage_of


def plan_stages(
    run: RunDirectory, recipe: Recipe, names: list[str], options: Options, priced: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """Returns each stage's `action` and `cost` (time by part, empty if skipped)."""
    target = local_target(recipe)
    rows: dict[str, dict[str, str]] = {}
    will_run: set[str] = set()
    for name in names:
        action = _why_it_runs(
            name=name, run=run, recipe=recipe, options=options, target=target, will_run=will_run
        )
        if action is None:
            rows[name] = {"action": "nothing changed, would be kept", "cost": ""}
            continue
        will_run.add(name)
        parts = priced.get("stages", {}).get(name, {})
        texts = [f"{part} {duration(seconds)}" for part, seconds in parts.items() if seconds]
        if len(texts) > 1:
            texts = [f"{duration(sum(parts.values()))}: {', '.join(texts)}"]
        rows[name] = {"action": action, "cost": "".join(texts)}
    return rows


def _why_it_runs(
    *,
    name: str,
    run: RunDirectory,
    recipe: Recipe,
    options: Options,
    target: Path | None,
    will_run: set[str],
) -> str | None:
    """Returns why a stage would run; None if it would be skipped."""
    stage = stage_of(name, recipe)
    if after := [needed for needed in stage.needs if needed in will_run]:
        return f"would run after {', '.join(after)}"
    if target is None:
        return "would run; the target is not on this machine yet and would be downloaded"
    # Without the weights, `stage.reasons` would download a hub model.
    if not has_weights(target):
        return "would run; the target's weights are not on this machine yet"
    reasons = stage.reasons(run, recipe, options)
    return f"would run: {'; '.join(reasons)}" if reasons else None


def print_plan(
    rows: Mapping[str, dict[str, str]], priced: dict[str, Any], console: Console
) -> None:
    """Prints stages, parameters, disk space, and the memory needed per device."""
    table = _table("dry run", "stage", "now", "cost")
    for name, row in rows.items():
        table.add_row(name, row["action"], row["cost"])
    console.print(table)
    if "missing" in priced:
        _say(console, f"no estimate: {priced['missing']}")
        return
    _print_hours(rows, priced, console)
    kinds: dict[str, dict[str, Any]] = priced.get("kinds", {"": priced})
    table = _table("cost", "", "")
    table.add_row("target", _target(priced["target"]))
    for name, kind in kinds.items():
        table.add_row(f"trained {name}".strip(), _parameters(kind["parameters"]))
        checkpoint, weights = (bytes_text(kind[f"{n}_bytes"]) for n in ("checkpoint", "speculator"))
        table.add_row("on disk", f"a checkpoint {checkpoint}, the speculator {weights}")
    about = "" if priced["traffic"]["counted"] else "about "
    table.add_row("captured", f"{about}{priced['features']['text']}")
    if "power" in priced:
        table.add_row("verdict", priced["power"])
    console.print(table)
    if priced["target"]["kv_cache_tokens"]:
        _say(console, _cache(priced["target"]))
    for name, kind in kinds.items():
        # The last device is the one that fits, or the last that was tried.
        *before, last = kind["memory"]
        for judged in before:
            lacking = bytes_text(judged["short_by_bytes"])
            _say(console, f"it does not fit {judged['device']}: {lacking} short")
        _print_memory(name, last, kind["row"], console)


def _print_hours(
    rows: Mapping[str, dict[str, str]], priced: dict[str, Any], console: Console
) -> None:
    """Prints the total, or why there is none, and the download."""
    parts = [priced["stages"].get(name, {}) for name, row in rows.items() if row["cost"]]
    if seconds := sum(sum(stage_parts.values()) for stage_parts in parts):
        _say(console, f"total {duration(seconds)} ({priced['rates']['source']})")
    if priced["assumed_response_tokens"] is not None and priced["no_hours"] is None:
        _say(
            console,
            "an upper bound: timed responses are assumed to have"
            f" {priced['assumed_response_tokens']:,} tokens until the log is read; set"
            " eval.max_tokens to a length that nine in ten do not exceed",
        )
    if priced["answers_up_to"] and priced["no_hours"] is None:
        _say(
            console,
            "without the further answers that a training part of fewer than"
            f" {priced['answers_up_to']:,} responses gets (capture.answers_up_to): they are priced"
            " once the log is read",
        )
    if priced["no_hours"] is not None:
        _say(console, f"no hours: {priced['no_hours']}")
    if priced["download"] is not None:
        _say(console, f"not in the total: {priced['download']['text']}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", width=80, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, width=80)


def _target(target: dict[str, Any]) -> str:
    text = (
        f"{count(target['parameters'])} parameters, {bytes_text(target['weight_bytes'])} of"
        f" weights, KV cache {bytes_text(target['kv_bytes_per_token'])} per token"
    )
    needed = target["smallest_tensor_parallel"]
    degree = target["tensor_parallel"]
    if target["gpu"] is None or (needed is not None and needed <= degree):
        return text
    fix = "64 are too few" if needed is None else f"set serving.engine.tensor_parallel={needed}"
    return f"{text}; {degree} x {target['gpu']} cannot serve it: {fix}"


def _cache(target: dict[str, Any]) -> str:
    """The KV cache against the largest concurrency, and a warning if requests have to wait."""
    tokens = target["kv_cache_tokens"]
    requests = target["requests"]
    text = f"KV cache on {target['tensor_parallel']} x {target['gpu']}: about {tokens:,} tokens"
    prompt = target["mean_prompt_tokens"]
    needed = target["max_tokens"] + (prompt or 0)
    if requests * needed <= tokens:
        return text
    length = f"{target['max_tokens']:,} response tokens"
    if prompt is not None:
        length = f"prompts of {prompt:,} tokens (the log's mean) and {length}"
    return (
        f"{text}, {tokens // needed} requests with {length}; of {requests} (eval.concurrency) the"
        " others wait or are preempted"
    )


def _parameters(parameters: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{count(value)} {name.replace('_', ' ')}" for name, value in parameters["parts"].items()
    )
    frozen = f", {count(parameters['frozen'])} frozen" if parameters["frozen"] else ""
    return f"{count(parameters['trained'])} parameters{frozen} ({parts})"


PHASES = {
    "start": "start, with the base speculator next to the new one",
    "steps": "steps, the backward pass",
    "fit": "fit, the closed form from which a head may start",
    "checkpoint": "checkpoint, its copy",
}
"""What the phases of training are, in the legend of the memory table."""


def _print_memory(name: str, judged: dict[str, Any], row: dict[str, Any], console: Console) -> None:
    device = "process" if judged["shared_by_processes"] else "GPU"
    layout = f"{judged['processes']} x ZeRO-{judged['zero_stage']}, on {judged['device']}"
    table = _table(f"memory per {device}{' for ' + name if name else ''}: {layout}", "part")
    for phase in judged["phases"]:
        table.add_column(f"{phase} *" if phase == judged["peak_phase"] else phase, justify="right")
    phases = judged["phases"].values()
    for part in dict.fromkeys(itertools.chain.from_iterable(phases)):
        sizes = [bytes_text(parts[part]) if part in parts else "" for parts in phases]
        table.add_row(part.replace("_", " "), *sizes)
    table.add_section()
    table.add_row("total", *(bytes_text(sum(parts.values())) for parts in phases))
    console.print(table)
    legend = "; ".join(PHASES[phase] for phase in judged["phases"] if phase in PHASES)
    say = [f"* the most of these phases: {legend}"]
    say.append(f"largest row: {row['tokens']:,} tokens, {row['anchors']:,} anchors")
    room = f"{bytes_text(judged['usable_bytes'])} usable of {bytes_text(judged['bytes'])}"
    short = f"it does NOT fit, short by {bytes_text(judged['short_by_bytes'])}: {room}"
    say.append(f"it fits: {room}" if judged["fits"] else short)
    if layout := judged["cheapest_layout"]:
        text = "training.processes={processes} training.zero_stage={zero_stage}".format(**layout)
        say.append(f"cheapest layout that fits: {text} ({bytes_text(layout['peak_bytes'])} each)")
    else:
        say.append(
            "no layout fits: lower training.row_tokens or speculator.depth, or freeze the experts"
            " (speculator.train=non_routed)"
        )
    if not judged["shared_by_processes"]:
        host = bytes_text(judged["host_bytes"])
        say.append(f"host memory: {host} for {judged['processes']} processes on one node")
    _say(console, "\n".join(say))
