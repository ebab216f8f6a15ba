"""Time to the first training step, disk and memory: stored and streamed features, by traffic.

    python -m benchmarks.streaming --sequences 150,600 --repeats 2 --runs /tmp/streaming

Each run is a recipe on nano R1 with `cluster.address=local` and one capture replica, so both ways
pay for Ray. Ingest and split are done before the clock starts. The time to the first step begins
with the command and ends when metrics.jsonl has the first step; stored runs mask off-policy
sequences and shuffle in the same windows, so their losses are the same numbers, which is checked.
The ways alternate. Needs the extra `cluster`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND = (
    "import sys; sys.argv[0] = 'train-speculator';"
    "from outrider.cli.main import train_speculator; train_speculator()"
)
SETTINGS = (
    "split.max_validation_sequences=8",
    "split.max_heldout_sequences=8",
    "speculator.depth=2",
    "training.epochs=1",
    "training.processes=1",
    "training.evaluate_every=100000",
    "training.checkpoint_every=100000",
    "training.parity=warn",
    "training.wandb_project=null",
    "cluster.address=local",
    # bf16 states depend on the engine's threads; a stream would leave one of two cores to training
    "cluster.cores_per_replica=1",
)
WAYS = {
    "stored": ("training.off_policy=mask",),
    "streamed": ("training.features=streamed",),
}
LOOK_S = 0.05


def command(arguments: argparse.Namespace, name: str, stages: str, *settings: str) -> list[str]:
    """A `train-speculator` of the recipe in `arguments`."""
    common = ("--recipe", arguments.recipe, "--runs", str(arguments.runs), "--stages", stages)
    sized = (
        f"capture.batch_tokens={arguments.batch_tokens}",
        f"training.shuffle_tokens={arguments.shuffle_tokens}",
        f"cluster.object_store_gb={arguments.object_store_gb}",
        f"cluster.in_flight_gb={arguments.in_flight_gb}",
    )
    return [sys.executable, "-c", COMMAND, *common, f"name={name}", *SETTINGS, *sized, *settings]


def steps(run: Path) -> list[dict[str, Any]]:
    """The lines of the training steps so far."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if "loss" in line]


def until_first_step(command_line: list[str], run: Path) -> tuple[float | None, float]:
    """Runs a command; seconds to the first training step of its run, and to its end.

    What it prints is in a log next to the run.
    """
    log_path = run.with_name(f"{run.name}.log")
    began, first = time.monotonic(), None
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command_line, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"}
        )
        while process.poll() is None:
            if first is None and steps(run):
                first = time.monotonic() - began
            time.sleep(LOOK_S)
    if process.returncode:
        raise SystemExit(f"{run.name}: exit status {process.returncode}, see {log_path}")
    return first, time.monotonic() - began


def measure(arguments: argparse.Namespace, way: str, sequences: int) -> dict[str, Any]:
    """One run: times in seconds, and sizes in bytes."""
    name = f"{way}-{sequences}"
    run = arguments.runs / name
    shutil.rmtree(run, ignore_errors=True)
    size = f"split.max_train_sequences={sequences}"
    before = command(arguments, name, "ingest,split", size, *WAYS[way])
    subprocess.run(before, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, total = until_first_step(
        command(arguments, name, "capture,train", size, *WAYS[way]), run
    )
    shards = [path.stat().st_size for path in run.rglob("shard-*.safetensors")]
    table = json.loads((run / "split" / "parts.json").read_text())
    return {
        "way": way,
        "sequences": len(table["train"]),
        "first_step_s": round(first if first is not None else total, 1),
        "total_s": round(total, 1),
        "disk_bytes": sum(shards),
        "most_held_bytes": max(line.get("stream_most_held_bytes", 0) for line in steps(run)),
        "losses": [line["loss"] for line in steps(run)],
    }


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown rows: medians of the repeats, with the smallest and the largest."""
    lines = [
        "| training sequences | features | first step, s | whole run, s | states on disk, MB |"
        " most states held, MB |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["sequences"], result["way"]), []).append(result)
    for (sequences, way), group in sorted(groups.items()):
        first, whole = (
            f"{statistics.median(values):.0f} [{min(values):.0f}, {max(values):.0f}]"
            for values in (
                [each["first_step_s"] for each in group],
                [each["total_s"] for each in group],
            )
        )
        disk, held = (
            f"{max(each[key] for each in group) / 1e6:.1f}"
            for key in ("disk_bytes", "most_held_bytes")
        )
        lines.append(f"| {sequences} | {way} | {first} | {whole} | {disk} | {held} |")
    return lines


def main() -> None:
    """Prints the table, then one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="resume_screening")
    parser.add_argument("--sequences", default="150,600", help="training sequences, by comma")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/streaming"))
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--shuffle-tokens", type=int, default=16384)
    parser.add_argument("--object-store-gb", type=float, default=0.3)
    parser.add_argument("--in-flight-gb", type=float, default=0.1)
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for _ in range(arguments.repeats):
        for sequences in map(int, arguments.sequences.split(",")):
            pair = [measure(arguments, way, sequences) for way in WAYS]
            if pair[0].pop("losses") != pair[1].pop("losses"):
                raise SystemExit(f"{sequences} sequences: the losses of the two ways differ")
            for result in pair:
                print(json.dumps(result), file=sys.stderr, flush=True)
            results += pair
    print("\n".join(table(results)))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
