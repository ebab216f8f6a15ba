"""Held-out acceptance of nano R1's MTP layer by loss and depth weights.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.states --train 100 --heldout 40
    python -m benchmarks.losses --seeds 3         # resumes
    python -m benchmarks.losses --table

Trains with the trainer's own parts (rows, unroll, objective, schedule) in float32 in this process,
without DeepSpeed, one epoch per run over the same sequences in a different order. Replays held-out
responses exactly, with `greedy` drafts and with drafts `drawn` at the customer's temperature.
Appends one line of JSON per run; several processes may share a file (`--part 0/2`).
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LOSSES = ("kl", "ce", "tv", "lk_alpha", "lk_hybrid")


@dataclass(frozen=True)
class Cell:
    """One training configuration."""

    loss: str
    weights: str
    matched: str = "greedy"
    """Drafts that the loss assumes: `greedy`, `drawn`, or `plain` (greedy, p at temperature 1)."""


EVERY_LOSS = [
    *(Cell(loss, "decay") for loss in LOSSES),
    *(Cell(loss, weights) for weights in ("uniform", "visited") for loss in ("kl", "lk_hybrid")),
    Cell("kl", "decay", "plain"),
]
THE_REST = [
    *(
        Cell(loss, weights)
        for weights in ("uniform", "visited")
        for loss in ("ce", "tv", "lk_alpha")
    ),
    *(Cell(loss, "decay", "drawn") for loss in LOSSES),
]
"""Combinations, run after each loss and weighting has all seeds."""


class Bench:
    """Data shared by all runs, read once."""

    def __init__(self, args: argparse.Namespace):
        from outrider.common.files import read_json
        from outrider.data.features.feature_store import FeatureStore
        from outrider.data.sequences import load_sequences
        from outrider.serving.config import TargetConfig
        from outrider.training.distributed.spec import Sampling
        from outrider.training.packing import make_samples

        self.args = args
        self.target_dir = TargetConfig().directory()
        self.store = FeatureStore.open(args.run / "states")
        columns = ["sequence_id", "session", "temperature", "top_p"]
        self.rows = {
            row["sequence_id"]: row
            for row in load_sequences(args.run / "traffic" / "sequences").select_columns(columns)
        }
        self.sampling = {
            name: Sampling(temperature=row["temperature"], top_p=row["top_p"])
            for name, row in self.rows.items()
        }
        self.parts = read_json(args.run / "split" / "parts.json")
        lengths = {row["id"]: row for row in self.store.manifest["sequences"]}
        chosen = [lengths[name] for name in self.parts["train"][: args.sequences]]
        self.samples, _ = make_samples(
            ((row["id"], row["length"], row["completion_start"]) for row in chosen), args.row_tokens
        )

    def train(self, cell: Cell, seed: int) -> tuple[Any, float]:
        """The speculator after one epoch, and the seconds of training."""
        import torch

        from outrider.speculators.checkpoints.target_ends import load_target_ends
        from outrider.speculators.kinds.mtp.checkpoint import load_mtp
        from outrider.training.batches import assemble
        from outrider.training.config import TrainingConfig
        from outrider.training.distributed.accelerator import ChainUnroll
        from outrider.training.distributed.spec import Sampling
        from outrider.training.objective import Objective
        from outrider.training.packing import plan_epoch

        args = self.args
        config = TrainingConfig(
            loss=cell.loss, depth_weights=cell.weights, learning_rate=args.learning_rate
        )
        speculator, ends = load_mtp(self.target_dir), load_target_ends(self.target_dir)
        model = ChainUnroll(speculator, ends, args.depth)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
        sampling = self.sampling
        if cell.matched == "plain":
            sampling = {name: Sampling(temperature=1.0, top_p=1.0) for name in sampling}
        drawn = cell.matched == "drawn"
        objective = Objective(config, args.depth, ends.lm_head_VH, self.samples, sampling, drawn)
        steps = plan_epoch(self.samples, args.row_tokens, args.rows_per_step, seed, epoch=0)
        began = time.perf_counter()
        for step, rows in enumerate(steps):
            share_K = objective.share([self.samples[index] for row in rows for index in row])
            for row in rows:
                batch = assemble(self.store, self.samples, row, args.row_tokens, self.store.spec)
                loss, _ = objective.of_row(model.drafted(batch), batch, share_K)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_at(step, len(steps))
            optimizer.step()
            optimizer.zero_grad()
        return speculator, time.perf_counter() - began

    def judge(self, speculator: Any) -> dict[str, list[float]]:
        """Held-out acceptance lengths for k = 1..K, of the exported weights."""
        from outrider.eval.replay.replay import replay
        from outrider.speculators.kinds.mtp.checkpoint import save_mtp

        held_out = [self.rows[name] for name in self.parts["heldout"][: self.args.heldout]]
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "speculator"
            save_mtp(speculator, self.target_dir, directory)
            return {
                name: replay(
                    directory, self.target_dir, self.store, held_out, self.args.depth, method
                ).acceptance_length()
                for name, method in (("greedy", "greedy"), ("drawn", "probabilistic"))
            }


def run(args: argparse.Namespace) -> None:
    """Runs what the file lacks, most informative runs first."""
    done = {
        (line["loss"], line["weights"], line["matched"], line["seed"]) for line in _lines(args.out)
    }
    part, parts = (int(number) for number in args.part.split("/"))
    bench = Bench(args)
    if ("base", "", "", 0) not in done and not part:
        from outrider.speculators.kinds.mtp.checkpoint import load_mtp

        _append(
            args.out,
            {"loss": "base", "weights": "", "matched": "", "seed": 0},
            bench.judge(load_mtp(bench.target_dir)),
        )
    runs = [
        pair
        for cells in (EVERY_LOSS, THE_REST)
        for pair in itertools.product(range(args.seeds), cells)
    ]
    for number, (seed, cell) in enumerate(runs):
        if number % parts != part or (*asdict(cell).values(), seed) in done:
            continue
        speculator, seconds = bench.train(cell, seed)
        tokens = sum(sample.length for sample in bench.samples)
        _append(
            args.out,
            asdict(cell) | {"seed": seed, "seconds": round(seconds, 1), "tokens": tokens},
            bench.judge(speculator),
        )


def table(args: argparse.Namespace) -> None:
    """Mean over seeds at K, with the sample standard deviation."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in _lines(args.out):
        cells.setdefault((line["loss"], line["weights"], line["matched"]), []).append(line)
    print("| loss | depth weights | matched to | greedy drafts | drawn drafts | seeds |")
    print("|---|---|---|---|---|---|")
    for (loss, weights, matched), lines in cells.items():
        figures = []
        for name in ("greedy", "drawn"):
            values = [line[name][-1] for line in lines]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            figures.append(f"{statistics.mean(values):.3f}{spread}")
        print(f"| {loss} | {weights} | {matched} | {figures[0]} | {figures[1]} | {len(lines)} |")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, *values: dict[str, Any]) -> None:
    line = json.dumps({key: value for part in values for key, value in part.items()})
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run",
        type=Path,
        default=Path("runs/resume_screening"),
        help="a run with states (benchmarks/states.py)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/losses.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--heldout", type=int, default=40)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument(
        "--rows-per-step", type=int, default=1, help="small steps give many of them in little time"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument(
        "--part", default="0/1", help="share of the runs for this process: 0/2 and 1/2"
    )
    parser.add_argument("--table", action="store_true", help="only print finished runs")
    args = parser.parse_args()
    table(args) if args.table else run(args)


if __name__ == "__main__":
    main()
