"""What several of the target's responses to each logged prompt add to a small log.

    outrider train smollm2/resume_screening speculator.kind=eagle3 --stages ingest,split,capture
    python -m benchmarks.more_samples record runs/smollm2_resume_screening build/samples \
        --responses 120 --samples 7
    outrider train smollm2/resume_screening name=samples speculator.kind=eagle3 \
        traffic.path=build/samples --stages ingest,split,capture
    python -m benchmarks.more_samples measure runs/samples --responses 120 --samples 0 3 7

`record` writes the run's sequences as logged.jsonl and the target's further responses to the first
training prompts as sampled.jsonl, at the logged sampling settings and in the logged sessions, so
that they are split as the prompts are. `measure` trains on the first responses with some of the
further ones, and on all logged responses (`--responses 0`), and replays the held-out part exactly.
Results are in RUN/more_samples.json; what it has is skipped.
"""

import argparse
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.data.sequences import load_sequences
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.pipeline.stages.train import train_on
from outrider.serving.engine import AskedRow, batches, in_process, open_engine
from tools.learning_curve import acceptance

BATCH_TOKENS = 65536
SAMPLED = "1-"
"""Sequences of the second file, sampled.jsonl."""


def exchange_of(row: dict[str, Any]) -> dict[str, Any]:
    """A sequence as an exchange with token ids."""
    start = row["completion_start"]
    return {
        "prompt_token_ids": row["token_ids"][:start],
        "completion_token_ids": row["token_ids"][start:],
        "finish_reason": row["finish_reason"],
        "temperature": round(row["temperature"], 4),
        "top_p": round(row["top_p"], 4),
        "timestamp": row["time"],
        "session_id": row["session"],
        "user_id": row["user"],
        "model": row["model"],
    }


def write_lines(path: Path, exchanges: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(exchange) + "\n" for exchange in exchanges))


def record(root: Path, out: Path, responses: int, samples: int) -> None:
    """Writes the run's sequences, and `samples` responses to each of the first training prompts."""
    run = RunDirectory(root.resolve())
    recipe = load_recipe(str(run.root)).recipe
    rows = {row["sequence_id"]: row for row in load_sequences(run.sequences).to_list()}
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / "logged.jsonl", [exchange_of(row) for row in rows.values()])
    longest = max(len(row["token_ids"]) - row["completion_start"] for row in rows.values())
    asked = [rows[row_id] for row_id in parts_in_use(run)["train"][:responses]]
    questions = [
        AskedRow(
            row_id=f"{row['sequence_id']} {sample}",
            token_ids=row["token_ids"][: row["completion_start"]],
            temperature=round(row["temperature"], 4),
            top_p=round(row["top_p"], 4),
            max_tokens=longest,
            top_k=row["top_k"],
        )
        for row in asked
        for sample in range(1, samples + 1)
    ]
    sampled = []
    with open_engine(recipe.target, in_process(recipe.serving.engine)[0]) as engine:
        for batch in batches(questions, BATCH_TOKENS):
            for question, answer in zip(batch, engine.answer(batch), strict=True):
                row_id, sample = question.row_id.split()
                row = rows[row_id]
                exchange = exchange_of(row | {"token_ids": [*question.token_ids, *answer]})
                # Without an end token, the limit ended it. A time of its own, or it could be a copy
                # of another response with the same tokens.
                ended = len(answer) < longest
                sampled.append(
                    exchange
                    | {"finish_reason": "stop" if ended else "length"}
                    | {"timestamp": row["time"] + int(sample) / 1000}
                )
            print(f"{len(sampled):,} of {len(questions):,} responses", flush=True)
    write_lines(out / "sampled.jsonl", sampled)


def with_samples(rows: list[dict[str, Any]], logged: list[str], samples: int) -> list[str]:
    """The ids `logged`, and of each one's prompt the first `samples` further responses."""
    further = defaultdict(list)
    prompts = {}
    for row in rows:
        prompt = tuple(row["token_ids"][: row["completion_start"]])
        if row["sequence_id"].startswith(SAMPLED):
            further[prompt].append(row["sequence_id"])
        else:
            prompts[row["sequence_id"]] = prompt
    chosen = dict.fromkeys(logged)
    for row_id in logged:
        chosen |= dict.fromkeys(further[prompts[row_id]][:samples])
    return list(chosen)


def measure(root: Path, responses: int, samples: list[int], overrides: list[str]) -> None:
    """Trains and replays a head for each number of samples; prints and stores its acceptance."""
    run = RunDirectory(root.resolve())
    recipe = load_recipe(str(run.root), overrides).recipe
    parts = parts_in_use(run)
    logged = [row_id for row_id in parts["train"] if not row_id.startswith(SAMPLED)]
    logged = logged[:responses] if responses else logged
    rows = load_sequences(run.sequences, parts["train"]).to_list()
    results = run.root / "more_samples.json"
    for count in samples:
        name = " ".join([f"{len(logged)} x {1 + count}", *overrides])
        lengths: dict[str, Any] = read_json(results) if results.is_file() else {}
        if name in lengths:
            continue
        trial = run.of_kind(f"trial_{len(lengths)}")
        # Another training in this folder would be resumed.
        shutil.rmtree(trial.trained, ignore_errors=True)
        train_on(trial, recipe, {**parts, "train": with_samples(rows, logged, count)})
        lengths[name] = acceptance(run, recipe, trial.speculator, parts["heldout"])
        write_json(results, lengths)
        print(name, lengths[name], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="command", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("run", type=Path)
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--responses", type=int, default=120)
    recorder.add_argument("--samples", type=int, default=7)
    measurer = verbs.add_parser("measure")
    measurer.add_argument("run", type=Path)
    measurer.add_argument("--responses", type=int, default=120, help="0: all")
    measurer.add_argument("--samples", type=int, nargs="+", default=[0])
    measurer.add_argument("--set", nargs="*", default=[], help="recipe keys, KEY=VALUE")
    args = parser.parse_args()
    if args.command == "record":
        record(args.run, args.out, args.responses, args.samples)
    else:
        measure(args.run, args.responses, args.samples, args.set)


if __name__ == "__main__":
    main()
