"""What FP8 costs a speculator on nano R1: each `speculator.train` on a copy of the target in DeepSeek's FP8 blocks.

train-speculator --recipe resume_screening.yaml --stages ingest,split,capture name=fp8_nano
nice -n 10 python -m benchmarks.fp8 --run runs/fp8_nano --out runs/fp8_nano/fp8 [--train all non_routed lora] [--seeds 3] [--epochs 1]

The states are those of the target as it comes (nothing serves FP8 blocks on most CPUs); only the MTP layer that is trained and
published is FP8. A line of JSON for each run: acceptance length by exact replay at the depth trained, on the validation part before
training, of the trained weights and of the published ones, and on the held-out part of base and published. Runs that a line is there of
are not repeated.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from outrider.data.feature_store import FeatureStore
from outrider.data.quarantine import load_parts
from outrider.data.sequences import load_sequences
from outrider.eval.replay import replay
from outrider.serving.config import TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig
from outrider.training.launch import train
from tests.fp8_target import write_fp8_copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/fp8_nano"))
    parser.add_argument("--out", type=Path, default=Path("runs/fp8_nano/fp8"))
    parser.add_argument("--train", nargs="+", default=["all", "non_routed", "lora"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--depth", type=int, default=5)
    args = parser.parse_args()
    target = args.out / "target"
    if not target.exists():
        write_fp8_copy(TargetConfig().directory(), target)
    lines = args.out / "lines.jsonl"
    known = [json.loads(line)["settings"] for line in lines.read_text().splitlines()] if lines.exists() else []
    for seed in range(args.seeds):
        for mode in args.train:
            settings = {
                "train": mode,
                "seed": seed,
                "epochs": args.epochs,
                "learning_rate": args.learning_rate,
                "depth": args.depth,
            }
            if settings not in known:
                with lines.open("a") as file:
                    file.write(json.dumps({"settings": settings, **_one(args.run, args.out, target, settings)}) + "\n")
    print(lines.read_text(), end="")


def _one(run: Path, out: Path, target: Path, settings: dict[str, Any]) -> dict[str, Any]:
    parts, store = load_parts(run / "split", run / "features"), FeatureStore.open(run / "features")
    columns = ["sequence_id", "session", "temperature", "top_p"]
    rows = {row["sequence_id"]: row for row in load_sequences(run / "traffic" / "sequences").select_columns(columns)}
    work = out / "_".join(str(value) for value in settings.values())
    result = train(
        target,
        run / "features",
        {name: (row["temperature"], row["top_p"]) for name, row in rows.items()},
        parts,
        SpeculatorConfig(depth=settings["depth"], train=settings["train"]),
        TrainingConfig(
            epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            seed=settings["seed"],
            row_tokens=2048,
            evaluate_every=40,
            wandb_project=None,
        ),
        work / "training",
        work / "speculator",
        work,
    )
    heldout = [rows[name] for name in parts["heldout"]]
    replayed = {
        name: replay(directory, target, store, heldout, settings["depth"]).acceptance_length()[-1]
        for name, directory in (("base", target), ("published", work / "speculator"))
    }
    lengths = {name: result[name]["acceptance_length"][-1] for name in ("base", "best", "exported")}
    return {"validation": lengths, "heldout": replayed, "seconds": result["seconds"], "steps": result["steps"]}


if __name__ == "__main__":
    main()
