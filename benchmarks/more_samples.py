"""What a small log gains if the target answers each logged prompt several times.

    python -m benchmarks.more_samples log document_extraction runs/samples.jsonl
    outrider train smollm2/document_extraction name=samples traffic.path=runs/samples.jsonl ... \
        capture.answers_up_to=480 --stages ingest,split,capture        # as `log` prints it
    python -m benchmarks.more_samples measure document_extraction runs/samples
    python -m benchmarks.more_samples table

`log` keeps the first 120 responses of a workload's training part, all of its validation and
held-out part, and leaves the other training responses out: a small log. The capture adds three
further answers of the target to each of the 120 prompts. `measure` trains the workload's head on
the 120 responses alone and with the further answers, and as a control on the 120 responses for four
times as many epochs, and replays the held-out part exactly. A finished measurement is not repeated.
The same head trained on the whole log is in workloads.json (workloads.py). Without AVX512_BF16, add
`serving.engine.dtype=float32 training.compute=fp32` to the printed command.

For résumé screening, a server recorded the further answers, before `capture.answers_up_to` existed.
"""

import argparse
import gzip
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.data.config import MOST_FURTHER, SplitConfig
from outrider.data.features.answers import with_further
from outrider.data.features.feature_store import FeatureStore
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.pipeline.stages.train import train_on
from tools.learning_curve import acceptance

RESULTS = Path(__file__).with_name("results") / "more_samples.json"
WORKLOADS = RESULTS.with_name("workloads.json")
RESPONSES = 120
ANSWERS = 1 + MOST_FURTHER
"""Answers to each prompt, with the logged one."""

EPOCHS_AGAIN = f"1, with {ANSWERS} times as many epochs"

Row = dict[str, Any]


def logged_rows(workload: str) -> list[Row]:
    """The workload's log, in order of time."""
    files = sorted((SHIPPED / "smollm2" / "traffic" / workload).glob("*.jsonl.gz"))
    lines = (gzip.decompress(file.read_bytes()).splitlines() for file in files)
    rows = [json.loads(line) for line in itertools.chain.from_iterable(lines)]
    return sorted(rows, key=lambda row: row["timestamp"])


def small_log(rows: list[Row]) -> tuple[list[Row], list[Row], list[float]]:
    """Training rows, later rows, and the shares of validation and held-out sessions in both.

    Sessions are divided as `data/split` divides the whole log, so that the later parts are equal.
    """
    sessions = list(dict.fromkeys(row["session_id"] for row in rows))
    shares = SplitConfig()
    counts = [
        round(share * len(sessions))
        for share in (shares.validation_fraction, shares.heldout_fraction)
    ]
    later = set(sessions[len(sessions) - sum(counts) :])
    training = [row for row in rows if row["session_id"] not in later][:RESPONSES]
    kept = len({row["session_id"] for row in training}) + sum(counts)
    later_rows = [row for row in rows if row["session_id"] in later]
    return training, later_rows, [count / kept for count in counts]


def write_log(workload: str, log: Path) -> list[float]:
    """Writes the small log; returns the shares of the later parts."""
    training, later, shares = small_log(logged_rows(workload))
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in [*training, *later])
    log.write_text("".join(lines), encoding="utf-8")
    return shares


def measure(workload: str, root: Path) -> None:
    """Trains and replays one head for each number of answers; prints and stores each result."""
    run = RunDirectory(root.resolve())
    parts = parts_in_use(run)
    answered = with_further(parts["train"], FeatureStore.open(run.features).sequence_ids)
    for name, train, overrides in _variants(str(run.root), parts["train"], answered):
        results: dict[str, Any] = read_json(RESULTS) if RESULTS.is_file() else {}
        of_workload = results.setdefault(workload, {})
        if name in of_workload:
            continue
        recipe = load_recipe(str(run.root), overrides).recipe
        variant_run = run.of_kind(name.replace(",", "").replace(" ", "_"))
        # An earlier measurement's training on other responses would be resumed.
        shutil.rmtree(variant_run.trained, ignore_errors=True)
        train_on(variant_run, recipe, {**parts, "train": train})
        of_workload[name] = {
            "responses": len(train),
            **acceptance(run, recipe, variant_run.speculator, parts["heldout"]),
        }
        print(workload, name, of_workload[name], flush=True)
        write_json(RESULTS, results)


def _variants(
    root: str, logged: list[str], answered: list[str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Names, training sequences, and overrides of the recipe."""
    yield "1", logged, []
    yield str(ANSWERS), answered, []
    epochs = load_recipe(root).recipe.training.epochs
    yield EPOCHS_AGAIN, logged, [f"training.epochs={ANSWERS * epochs}"]


def table(results: dict[str, Any]) -> list[str]:
    """Markdown rows: held-out tokens per step at the recipe's depth."""
    lines = [
        "| workload | answers to each prompt | training responses | tokens per step |",
        "|---|---|---|---|",
    ]
    whole = read_json(WORKLOADS)
    for workload, variants in results.items():
        shown = workload.replace("_", " ")
        of_log = whole[workload]
        lines.append(f"| {shown} | none: the base | 0 | {of_log['tokens_per_step']['base'][-1]} |")
        for name, result in variants.items():
            bounds = f"{result['value']:.3f} [{result['low']:.3f}, {result['high']:.3f}]"
            lines.append(f"| {shown} | {name} | {result['responses']} | {bounds} |")
        value, low, high = of_log["custom"][-1]
        bounds = f"{value:.3f} [{low:.3f}, {high:.3f}]"
        lines.append(f"| {shown} | whole log | {of_log['responses']['train']} | {bounds} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("log")
    writer.add_argument("workload")
    writer.add_argument("log", type=Path)
    measurer = commands.add_parser("measure")
    measurer.add_argument("workload")
    measurer.add_argument("run", type=Path)
    commands.add_parser("table")
    args = parser.parse_args()
    if args.command == "log":
        validation, heldout = write_log(args.workload, args.log)
        print(
            f"outrider train smollm2/{args.workload} name={args.log.stem} speculator.kind=eagle3"
            f" traffic.path={args.log.resolve()} split.validation_fraction={validation:.5f}"
            f" split.heldout_fraction={heldout:.5f} capture.answers_up_to={ANSWERS * RESPONSES}"
            " --stages ingest,split,capture"
        )
    elif args.command == "measure":
        measure(args.workload, args.run)
    else:
        print(*table(read_json(RESULTS)), sep="\n")


if __name__ == "__main__":
    main()
