"""Overhead of Ray Train: training tokens/s with ranks of torchrun and ranks of Ray, in turn.

    python -m benchmarks.cluster_training --processes 2 --repeats 3 --runs /tmp/cluster_training

Each run trains the recipe on nano R1 from the same captured states, once with the ranks started by
torchrun and once on a private Ray cluster. The rate is the median over the steps after the first
two, as metrics.jsonl has it, so starts do not count; they are printed as well, from the command to
the first step. The losses of both must be the same numbers. (One process on a private cluster would
not use Ray.) Needs the extra `cluster`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.streaming import COMMAND, steps, until_first_step

SETTINGS = (
    "split.max_validation_sequences=16",
    "split.max_heldout_sequences=16",
    "split.max_train_sequences=400",
    "speculator.depth=3",
    "training.epochs=2",
    "training.evaluate_every=100000",
    "training.checkpoint_every=100000",
    "training.parity=warn",
    "training.wandb_project=null",
)
WAYS = {"torchrun": (), "ray": ("cluster.address=local",)}
WARM_UP = 2


def command(name: str, runs: Path, stages: str, *settings: str) -> list[str]:
    """A `train-speculator` of the shipped recipe."""
    common = ("--recipe", "resume_screening", "--runs", str(runs), "--stages", stages)
    return [sys.executable, "-c", COMMAND, *common, f"name={name}", *SETTINGS, *settings]


def measure(runs: Path, way: str, processes: int) -> dict[str, Any]:
    """One training: seconds to the first step, tokens/s, and the losses."""
    name = f"{way}-{processes}"
    shutil.rmtree(runs / name, ignore_errors=True)
    shutil.copytree(runs / "captured", runs / name)
    cores = max(1, len(os.sched_getaffinity(0)) // processes)  # torchrun's ranks have as many
    settings = (
        f"training.processes={processes}",
        f"cluster.training_cores={cores}",
        *WAYS[way],
    )
    first, _ = until_first_step(command(name, runs, "train", *settings), runs / name)
    if first is None:
        raise SystemExit(f"{name}: no step was trained")
    lines = steps(runs / name)
    rates = [line["tokens_per_s"] for line in lines[WARM_UP:]]
    return {
        "way": way,
        "processes": processes,
        "steps": len(lines),
        "first_step_s": round(first, 1),
        "tokens_per_s": round(statistics.median(rates)),
        "losses": [line["loss"] for line in lines],
    }


def main() -> None:
    """Prints one line for each run, then the ratios of neighbouring runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/cluster_training"))
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        command("captured", args.runs, "ingest,split,capture"),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ratios: dict[int, list[float]] = {}
    for repeat in range(args.repeats):
        for processes in args.processes:
            ways = list(WAYS) if repeat % 2 == 0 else list(reversed(WAYS))
            found = {way: measure(args.runs, way, processes) for way in ways}
            losses = [each.pop("losses") for each in found.values()]
            same = losses[0] == losses[1]
            for each in found.values():
                print(json.dumps(each | {"same_losses": same}), flush=True)
            ratio = found["ray"]["tokens_per_s"] / found["torchrun"]["tokens_per_s"]
            ratios.setdefault(processes, []).append(ratio)
    for processes, each in ratios.items():
        rounded = [round(ratio, 3) for ratio in each]
        print(
            json.dumps(
                {
                    "processes": processes,
                    "ray_over_torchrun": round(statistics.median(each), 3),
                    "ratios": rounded,
                }
            )
        )


if __name__ == "__main__":
    main()
