"""`outrider train`: from traffic to an evaluated and exported speculator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import outrider
from outrider.cli.options import (
    AsJson,
    Flag,
    FromServeCommand,
    ListedRecipeName,
    MaxGpuHours,
    Overrides,
    Runs,
    Until,
)
from outrider.cli.printing import print_json, print_run_summary, wants_json
from outrider.common.errors import UsageError
from outrider.common.gpu_cards import CARDS, Card, card_named


def train_speculator(
    recipe: ListedRecipeName,
    *overrides: Overrides,
    dry_run: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
    gpu: str | None = None,
    gpu_memory: float | None = None,
    stages: str | None = None,
    until: Until = None,
    max_gpu_hours: MaxGpuHours = None,
    runs: Runs = Path("runs"),
    from_serve_command: FromServeCommand = None,
    force: Annotated[bool, Flag] = False,
) -> int:
    """Train a speculator on traffic: ingest, split, capture, train, evaluate, export.

    Stages that are done and unchanged are skipped.

    Parameters
    ----------
    dry_run
        Write recipe.resolved.yaml, print what each stage would do and what it costs (parameters,
        memory by component and whether it fits, disk space, time), and stop. Needs only the
        target's config.json.
    as_json
        Print the result as one line of JSON also to a terminal; with --dry-run, without the tables.
    gpu
        With --dry-run: the card to plan for, such as L4 or H100: its memory, bandwidth and bf16
        peak. Default: this machine's GPUs. Without one: main memory or, if training does not fit
        there, an assumed H200, which also determines the hours. The output states which.
    gpu_memory
        With --dry-run: memory of one GPU in GB, instead of the card's. Alone, it gives no hours.
    stages
        Run only these comma-separated stages: ingest, split, capture, train, choose_kind (only with
        several kinds), evaluate, export.
    force
        Export even a speculator that is not better than the base.
    """
    only_planned = {"--gpu": gpu, "--gpu-memory": gpu_memory is not None}
    for option, is_set in only_planned.items():
        if is_set and not dry_run:
            raise UsageError(f"{option} needs --dry-run")
    if gpu_memory is not None and gpu_memory <= 0:
        raise UsageError(f"--gpu-memory {gpu_memory:g}: give one GPU's memory in GB, such as 80")
    card = None if gpu is None else _card(gpu)
    run = outrider.open(
        recipe, *overrides, runs=runs, dry_run=dry_run, serve_command=from_serve_command
    )
    if not dry_run:
        end = run.window(until, max_gpu_hours)
        return print_run_summary(run, run.train(stages, force, end), as_json=as_json)
    gpu_bytes = None if gpu_memory is None else int(gpu_memory * 1e9)
    rows, cost = run.plan(stages, force, gpu_bytes, card)
    if not as_json:
        _print_tables(run, rows, cost)
    # Scripts read the object; a person has read the tables.
    if wants_json(as_json):
        about = {"recipe": run.recipe.name, "run_dir": str(run.directory.root)}
        print_json(about | {"dry_run": rows, "price": cost})
    # Without config.json there is no estimate.
    return int("missing" in cost)


def _card(name: str) -> Card:
    card = card_named(name)
    if card is None:
        known = ", ".join(card.name for card in CARDS)
        raise UsageError(
            f"--gpu {name}: unknown GPU; known are {known};"
            " --gpu-memory GB prints the memory without hours"
        )
    return card


def _print_tables(
    run: outrider.Run, rows: Mapping[str, dict[str, str]], cost: dict[str, Any]
) -> None:
    from rich.console import Console

    from outrider.pipeline.plan.plan import print_plan

    console = Console(stderr=True)
    print_plan(rows, cost, console)
    console.print(f"every key with its value: {run.directory.resolved_recipe}", soft_wrap=True)
