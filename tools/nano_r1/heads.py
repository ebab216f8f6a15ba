"""Trains nano R1's base heads (EAGLE-3, P-EAGLE) on general traffic.

    python -m tools.nano_r1.heads CORPUS_DIR [--processes 2]

They stand in for public heads. Nano R1 answers prompts from the training part of its mixture, which
contains no prompt of the shipped traffic, and is logged in the same way (record.py). Outrider's
stages ingest, split, capture and train read that log. The best checkpoint of each kind is published
in recipes/nano_r1, as `speculator.base: nano_r1/eagle3` for recipes. An interrupted run resumes.

With the same seed, machine and number of processes, log and heads are equal up to rounding: batches
depend on when requests arrive, and rounding can change sampled tokens.
"""

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

import outrider
from outrider.common.files import publish
from outrider.common.process_tree import Interrupted
from outrider.pipeline.recipe.shipped import SHIPPED
from tools.nano_r1.record import Workload, record, recording_server

HERE = SHIPPED / "nano_r1"
KINDS = ("eagle3", "p_eagle")

ENDPOINT = Workload(
    exchanges=2400,
    tenant="shared-endpoint",
    work=None,
    session_length=3,
    part="train",
    seed=23,
    with_token_ids=1.0,
)
"""General traffic. The shipped traffic has other prompts, because parts are disjoint."""

SETTINGS = {
    "split.validation_fraction": 0.03,
    "split.heldout_fraction": 0.01,
    "split.max_train_sequences": "null",
    "speculator.base": "none",
    "speculator.depth": 5,
    "speculator.head.layer_type": "llama",
    "speculator.head.draft_vocabulary": 2048,
    "training.scratch_epochs": 3,
    "training.row_tokens": 2048,
    "training.rows_per_step": 2,
    "training.evaluate_every": 200,
    "training.checkpoint_every": 100,
    "serving.engine.max_num_seqs": 8,
}
"""Changes to the résumé screening recipe."""


def record_endpoint(corpus_dir: Path, work_dir: Path, seed: int) -> Path:
    """The log of the endpoint, recorded if it does not exist yet."""
    log = work_dir / "general_train.jsonl.gz"
    if not log.is_file():
        workload = dataclasses.replace(ENDPOINT, seed=seed)
        with recording_server(work_dir / "server.log") as server:
            record(
                "general_train", workload, corpus_dir=corpus_dir, server=server, out_dir=work_dir
            )
    return log


def train_heads(log: Path, work_dir: Path, processes: int, seed: int) -> dict[str, Path]:
    """Directories of the trained heads by kind."""
    words = SETTINGS | {
        "name": "heads",
        "traffic.path": log.resolve(),
        "speculator.kind": f"[{', '.join(KINDS)}]",
        "training.processes": processes,
        "training.seed": seed,
    }
    overrides = tuple(f"{key}={value}" for key, value in words.items())
    stages = "ingest,split,capture,train"
    run = outrider.train("resume_screening", *overrides, runs=work_dir, stages=stages)
    return {kind: run.of_kind(kind).speculator for kind in KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--work-dir", type=Path, default=Path("runs/nano_r1_heads"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=23)
    args = parser.parse_args()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    log = record_endpoint(args.corpus, args.work_dir, args.seed)
    try:
        heads = train_heads(log, args.work_dir, args.processes, args.seed)
    except Interrupted as signal:
        sys.exit(f"heads: stopped by {signal}; run the same command to resume")
    for kind, trained in heads.items():
        with publish(args.out / kind) as temporary:
            shutil.copytree(trained, temporary)


if __name__ == "__main__":
    main()
