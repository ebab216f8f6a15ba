"""What a small log gains if the target answers each logged prompt several times.

    python -m benchmarks.more_samples record document_extraction build/smollm2 runs/samples.jsonl
    outrider train smollm2/document_extraction name=samples traffic.path=runs/samples.jsonl ... \
        --stages ingest,split,capture                              # as `record` prints it
    python -m benchmarks.more_samples measure document_extraction runs/samples
    python -m benchmarks.more_samples table

`record` keeps the first 120 responses of a workload's training part, all of its validation and
held-out part, and leaves the other training responses out: a small log. To it, it adds the target's
further answers to the 120 prompts, sampled as the log was. `measure` trains the workload's head on
the 120 responses alone and with three further answers to each, and as a control on the 120
responses for four times as many epochs, and replays the held-out part exactly. A finished
measurement is not repeated. The same head trained on the whole log is in workloads.json
(workloads.py). Without AVX512_BF16, add `--dtype float32` to `record`, and to the command that it
prints `serving.engine.dtype=float32 training.compute=fp32`.
"""

import argparse
import gzip
import itertools
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.data.config import SplitConfig
from outrider.data.sequences import load_sequences
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.pipeline.stages.train import train_on
from tools.learning_curve import acceptance
from tools.smollm2 import answer_with_tokens
from tools.workloads.record import CONCURRENCY, TURN_INTERVAL_S, Dtype, recording_server

RESULTS = Path(__file__).with_name("results") / "more_samples.json"
WORKLOADS = RESULTS.with_name("workloads.json")
RESPONSES = 120
SAMPLES = 4
"""Answers to each prompt, with the logged one."""

COUNTS = (1, 4)
EPOCHS_AGAIN = "1, with 4 times as many epochs"

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


def record(workload: str, target: Path, log: Path, dtype: Dtype) -> list[float]:
    """Writes the small log and the further answers; returns the shares of the later parts.

    Further answer `n` to a row is `n` seconds later than the row.
    """
    training, later, shares = small_log(logged_rows(workload))
    log.parent.mkdir(parents=True, exist_ok=True)
    if not log.is_file():
        log.write_text("".join(_line(row) for row in [*training, *later]), encoding="utf-8")
    recorded = {
        (row["session_id"], row["timestamp"])
        for row in map(json.loads, log.read_text("utf-8").splitlines())
    }
    further = [
        row | {"timestamp": row["timestamp"] + sample}
        for sample, row in itertools.product(range(1, SAMPLES), training)
    ]
    missing = [row for row in further if (row["session_id"], row["timestamp"]) not in recorded]
    if not missing:
        return shares
    server_log = log.with_suffix(".server.log")
    with (
        recording_server(target, dtype, server_log) as server,
        ThreadPoolExecutor(CONCURRENCY) as pool,
        log.open("a", encoding="utf-8") as file,
    ):
        asked = [pool.submit(answer_with_tokens, row, server) for row in missing]
        for done, answered in enumerate(as_completed(asked), 1):
            file.write(_line(answered.result()))
            file.flush()
            if done % CONCURRENCY == 0:
                print(f"{done} of {len(missing)}", flush=True)
    return shares


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def measure(workload: str, root: Path) -> None:
    """Trains and replays one head for each number of answers; prints and stores each result."""
    run = RunDirectory(root.resolve())
    parts = parts_in_use(run)
    table = load_sequences(run.sequences, parts["train"])
    # Rows of the log are whole turns apart, further answers seconds.
    samples = [int(time) % TURN_INTERVAL_S for time in table["time"]]
    for name, count, overrides in _variants(str(run.root)):
        results: dict[str, Any] = read_json(RESULTS) if RESULTS.is_file() else {}
        of_workload = results.setdefault(workload, {})
        if name in of_workload:
            continue
        recipe = load_recipe(str(run.root), overrides).recipe
        chosen = [
            sequence
            for sequence, sample in zip(parts["train"], samples, strict=True)
            if sample < count
        ]
        variant_run = run.of_kind(name.replace(",", "").replace(" ", "_"))
        # An earlier measurement's training on other responses would be resumed.
        shutil.rmtree(variant_run.trained, ignore_errors=True)
        train_on(variant_run, recipe, {**parts, "train": chosen})
        of_workload[name] = {
            "responses": len(chosen),
            **acceptance(run, recipe, variant_run.speculator, parts["heldout"]),
        }
        print(workload, name, of_workload[name], flush=True)
        write_json(RESULTS, results)


def _variants(root: str) -> Iterator[tuple[str, int, list[str]]]:
    """Names, answers to each prompt, and overrides of the recipe."""
    for count in COUNTS:
        yield str(count), count, []
    epochs = load_recipe(root).recipe.training.epochs
    yield EPOCHS_AGAIN, 1, [f"training.epochs={SAMPLES * epochs}"]


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
    recorder = commands.add_parser("record")
    recorder.add_argument("workload")
    recorder.add_argument("target", type=Path)
    recorder.add_argument("log", type=Path)
    recorder.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    measurer = commands.add_parser("measure")
    measurer.add_argument("workload")
    measurer.add_argument("run", type=Path)
    commands.add_parser("table")
    args = parser.parse_args()
    if args.command == "record":
        validation, heldout = record(args.workload, args.target, args.log, args.dtype)
        print(
            f"outrider train smollm2/{args.workload} name={args.log.stem} speculator.kind=eagle3"
            f" traffic.path={args.log.resolve()} split.validation_fraction={validation:.5f}"
            f" split.heldout_fraction={heldout:.5f} --stages ingest,split,capture"
        )
    elif args.command == "measure":
        measure(args.workload, args.run)
    else:
        print(*table(read_json(RESULTS)), sep="\n")


if __name__ == "__main__":
    main()
