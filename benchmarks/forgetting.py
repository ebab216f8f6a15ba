"""Gain on the customer's traffic and loss on other traffic, by training mode.

    train-speculator --recipe resume_screening.yaml --stages ingest,split name=forgetting \\
        traffic.general=nano_r1/general split.general_share=0.3
    python -m benchmarks.forgetting              # computes states first; finished runs are kept
    python -m benchmarks.forgetting --table

Every run trains on the same number of sequences: general traffic replaces the customer's.
Acceptance length by exact replay at the trained depth, greedy drafts, on the customer's held-out
part and the general one, base and custom paired, with 95 % intervals of custom / base over
sessions. `interpolated` averages the weights of base and `all` without training.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.states import one_epoch, write_states
from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.serving.config import TargetConfig
from outrider.speculators.checkpoints.interpolate import interpolate
from outrider.speculators.config import SpeculatorConfig
from outrider.training.distributed.launch import train

DEPTH = 5
TRAINED: dict[str, dict[str, Any]] = {
    "all": {},
    "non_routed": {"train": "non_routed"},
    "lora": {"train": "lora"},
    "all, 10 % general": {"share": 0.1},
    "all, 30 % general": {"share": 0.3},
    "all, base_kl 0.3": {"base_kl": 0.3},
    "all, base_kl 1": {"base_kl": 1.0},
}
SHARES = (0.25, 0.5, 0.75)


class Bench:
    """Data shared by all runs."""

    def __init__(self, run: Path, sequences: int, measured: int):
        self.run, self.target = run, TargetConfig().directory()
        parts = read_json(run / "split" / "parts.json")
        own = [name for name in parts["train"] if not name.startswith("g")]
        self.general = [name for name in parts["train"] if name.startswith("g")][
            : round(0.3 * sequences)
        ]
        self.own, self.validation = own[:sequences], own[sequences : sequences + 40]
        self.parts = {
            "customer": parts["heldout"][:measured],
            "general": parts["general"][:measured],
        }
        tables = [run / "traffic" / "sequences", run / "traffic" / "general" / "sequences"]
        needed = [
            *self.own,
            *self.general,
            *self.validation,
            *self.parts["customer"],
            *self.parts["general"],
        ]
        write_states(tables, needed, run / "states")
        self.store = FeatureStore.open(run / "states")
        columns = ["sequence_id", "session", "temperature", "top_p"]
        self.rows = {
            row["sequence_id"]: row
            for row in load_sequences(tables, needed).select_columns(columns)
        }
        self.base = {part: self.replayed(self.target, part) for part in self.parts}

    def replayed(self, directory: Path, part: str) -> ReplaySums:
        """Exact replay of a part."""
        rows = [self.rows[name] for name in self.parts[part]]
        return replay(directory, self.target, self.store, rows, DEPTH)

    def trained(self, name: str, share: float = 0.0, train: str = "all", **training: Any) -> Path:
        """A speculator trained with these settings."""
        work = (
            self.run
            / "forgetting"
            / name.replace(" ", "_").replace(",", "").replace("%", "percent")
        )
        if not (work / "speculator" / "config.json").is_file():
            self._train(work, share, train, training)
        return work / "speculator"

    def _train(self, work: Path, share: float, mode: Any, training: dict[str, Any]) -> None:
        mixed_in = round(share * len(self.own))
        train(
            self.target,
            self.run / "states",
            {name: (row["temperature"], row["top_p"]) for name, row in self.rows.items()},
            {"train": self.own[mixed_in:] + self.general[:mixed_in], "validation": self.validation},
            SpeculatorConfig(depth=DEPTH, train=mode),
            one_epoch(**training),
            work / "training",
            work / "speculator",
            work,
        )

    def line(self, name: str, directory: Path) -> dict[str, Any]:
        """Acceptance of a speculator on each part."""
        line: dict[str, Any] = {"name": name}
        for part, base in self.base.items():
            custom = self.replayed(directory, part)
            found = compare(base, custom, DEPTH)
            figures = ("base", "custom", "ratio")
            line[part] = {
                which: [found[which].value, found[which].low, found[which].high]
                for which in figures
            }
        return line


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown."""
    out = [
        "| trained | customer, base → custom | ratio | general, base → custom | ratio |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        cells = [line["name"]]
        for part in ("customer", "general"):
            found = line[part]
            cells.append(f"{found['base'][0]:.3f} → {found['custom'][0]:.3f}")
            cells.append("{:.3f} [{:.3f}, {:.3f}]".format(*found["ratio"]))
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/forgetting"))
    parser.add_argument("--sequences", type=int, default=160, help="training sequences per run")
    parser.add_argument(
        "--measured", type=int, default=60, help="at most this many held-out sequences per part"
    )
    parser.add_argument("--table", action="store_true", help="only print finished runs")
    args = parser.parse_args()
    path = args.run / "forgetting.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    if not args.table:
        bench = Bench(args.run, args.sequences, args.measured)
        done = {line["name"] for line in lines}

        def add(name: str, directory: Path) -> None:
            lines.append(bench.line(name, directory))
            with path.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")

        for name, settings in TRAINED.items():
            if name not in done:
                add(name, bench.trained(name, **settings))
        for share in SHARES:
            name = f"all, interpolated {share:g}"
            if name not in done:
                mixture = args.run / "forgetting" / f"interpolated_{share:g}"
                interpolate(bench.target, bench.trained("all"), share, mixture)
                add(name, mixture)
    print(table(lines))


if __name__ == "__main__":
    main()
