"""The training cost of a recipe as tables on stderr, within 80 columns.

print_price(price(run, recipe), Console(stderr=True))
"""

import itertools
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.eval.report.formatting import count
from outrider.pipeline.plan.cluster_schedule_page import print_schedule
from outrider.pipeline.plan.estimates import bytes_text, duration


def print_price(found: dict[str, Any], console: Console) -> None:
    """Prints parameters, disk and time, then memory for each device it was compared with."""
    if "features" not in found:
        console.print(f"no price: {found['missing']}", markup=False, highlight=False)
        return
    kinds: dict[str, dict[str, Any]] = found.get("kinds", {"": found})
    table = Table(title="cost", title_justify="left", show_header=False, width=80)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    features = found["features"]
    for name, kind in kinds.items():
        parameters = kind["parameters"]
        table.add_row(f"trained, {name}" if name else "trained", _parameters(parameters))
    table.add_row(
        "read, not trained",
        f"{count(parameters['target_ends_frozen'])} parameters of the target's embedding and head",
    )
    about = "" if features["tokens_counted"] else "about "
    per_token = f"{features['bytes_per_token']:,} bytes a token in {features['dtype']}"
    if features["tokens"]:
        table.add_row(
            "states on disk",
            f"{about}{bytes_text(features['bytes'])}: {features['tokens']:,} tokens, {per_token}",
        )
    else:
        table.add_row(
            "states on disk", f"{per_token}; the number of tokens is unknown before the ingest"
        )
    spent_on = [("capture", found["capture"])]
    spent_on += [
        (f"training, {name}".rstrip(", "), kind["training"]) for name, kind in kinds.items()
    ]
    for stage, spent in spent_on:
        if spent["seconds"]:
            table.add_row(
                stage,
                f"{about}{duration(spent['seconds'])} at {spent['tokens_per_s']:,g} tokens/s",
            )
        else:
            table.add_row(
                stage, f"time unknown: {stage.partition(',')[0]}.tokens_per_s gives no rate"
            )
    console.print(table)
    if "cluster" in found:
        print_schedule(found["cluster"], console)
    for name, kind in kinds.items():
        if name:
            console.print(f"training of {name}:", markup=False, highlight=False)
        *before, last = kind["memory"]
        for judged in before:
            lacking = bytes_text(judged["short_by_bytes"])
            short = f"it does not fit {judged['device']}: {lacking} short"
            console.print(short, markup=False, highlight=False, width=80)
        _print_memory(last, kind["row"], console)


def _parameters(parameters: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{count(value)} {name.replace('_', ' ')}"
        for name, value in parameters["parts"].items()
        if value
    )
    frozen = f", {count(parameters['frozen'])} frozen" if parameters["frozen"] else ""
    return f"{count(parameters['trained'])} parameters{frozen} (layer: {parts})"


def _print_memory(judged: dict[str, Any], row: dict[str, Any], console: Console) -> None:
    each = "of each process" if judged["shared_by_processes"] else "of each GPU"
    title = (
        f"memory {each}: {judged['processes']} x ZeRO-{judged['zero_stage']}, on {judged['device']}"
    )
    table = Table(title=title, title_justify="left", width=80)
    table.add_column("part", overflow="fold")
    for phase in judged["phases"]:
        table.add_column(f"{phase} *" if phase == judged["peak_phase"] else phase, justify="right")
    phases = judged["phases"].values()
    for part in dict.fromkeys(itertools.chain.from_iterable(phases)):
        sizes = [parts.get(part) for parts in phases]
        cells = [bytes_text(size) if size else "" for size in sizes]
        table.add_row(part.replace("_", " "), *cells, end_section=False)
    table.add_section()
    table.add_row("total", *(bytes_text(sum(parts.values())) for parts in phases))
    console.print(table)
    kind = (
        "one sequence that fills it, assumed"
        if row["assumed"]
        else "the largest of the ingested traffic"
    )
    say = [f"largest row: {row['tokens']:,} tokens, {row['anchors']:,} anchors ({kind})"]
    room = f"{bytes_text(judged['usable_bytes'])} usable of {bytes_text(judged['bytes'])}"
    if judged["fits"]:
        say.append(f"it fits: {room}")
    else:
        say.append(f"it does NOT fit, short by {bytes_text(judged['short_by_bytes'])}: {room}")
        if judged["largest_row_tokens"]:
            say.append(
                f"training.row_tokens={judged['largest_row_tokens']} would fit in this layout"
            )
    if layout := judged["cheapest_layout"]:
        processes = (
            f"training.processes={layout['processes']} training.zero_stage={layout['zero_stage']}"
        )
        say.append(
            f"cheapest layout that fits: {processes} ({bytes_text(layout['peak_bytes'])} each)"
        )
    else:
        say.append("no layout fits: lower training.row_tokens or speculator.depth")
    if not judged["shared_by_processes"]:
        say.append(
            f"host memory besides the GPUs: {bytes_text(judged['host_bytes'])}"
            f" for {judged['processes']} processes on one node"
        )
    console.print("\n".join(say), markup=False, highlight=False, width=80)
