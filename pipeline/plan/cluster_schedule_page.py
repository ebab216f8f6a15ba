"""The schedule of a recipe on a cluster as a table on stderr, within 80 columns.

print_schedule(cluster_schedule(tokens, recipe, target_config), Console(stderr=True))
"""

from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.pipeline.plan.estimates import bytes_text, duration

WAYS = ("stored", "streamed")


def print_schedule(schedule: dict[str, Any], console: Console) -> None:
    """Prints stored next to streamed features, and what would make them faster."""
    if "missing" in schedule:
        console.print(f"no schedule: {schedule['missing']}", markup=False, highlight=False)
        return
    replicas, workers = schedule["capture_replicas"], schedule["training_workers"]
    title = f"schedule: {replicas} capture replicas, {workers} training workers"
    table = Table(title=title, title_justify="left", width=80)
    table.add_column("features", overflow="fold")
    for way in WAYS:
        table.add_column(way, justify="right", overflow="fold")
    for name, key, text in ROWS:
        table.add_row(name, *(text(schedule[way][key]) for way in WAYS))
    console.print(table)
    rates = schedule["rates"]
    network = rates["network_bytes_per_s"]
    assumed = [
        f"capture {rates['capture_tokens_per_s']:,g} tokens/s a replica",
        f"training {rates['training_tokens_per_s']:,g} tokens/s",
        f"network {bytes_text(network)}/s" if network else "no network",
        f"store written at {bytes_text(rates['write_bytes_per_s'])}/s",
        f"read at {bytes_text(rates['read_bytes_per_s'])}/s",
    ]
    console.print(
        f"rates: {', '.join(assumed)}; evaluation not counted",
        markup=False,
        highlight=False,
        width=80,
    )


def _tokens_per_s(value: float) -> str:
    return f"{value:,.0f} tokens/s"


ROWS = (
    ("GPUs in use at once", "gpus", str),
    ("capture ends after", "capture_s", duration),
    ("captured", "captured_tokens_per_s", _tokens_per_s),
    ("first training step after", "first_step_s", duration),
    ("training ends after", "training_s", duration),
    ("GPU-hours, capture", "capture_gpu_hours", "{:,g}".format),
    ("GPU-hours, training", "training_gpu_hours", "{:,g}".format),
    ("bottleneck", "bottleneck", str),
    ("nothing gets faster beyond, replicas", "enough_replicas", str),
    ("over the network", "network_bytes", bytes_text),
    ("to and from the disk", "disk_bytes", bytes_text),
    ("room needed, cluster.in_flight_gb", "in_flight_bytes", bytes_text),
    ("object store of each node", "object_store_bytes", bytes_text),
)
"""(words, key of the schedule, its text)"""
