"""Cost of FP8 blocks for a speculator on nano R1.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.states --train 260 --heldout 80        # runs/resume_screening/states
    nice -n 10 python -m benchmarks.fp8 [--train all non_routed lora] [--seeds 3] [--epochs 2]

Each `speculator.train` mode runs on a copy of the target in DeepSeek's FP8 blocks. States are those
of the original target, because most CPUs cannot serve FP8 blocks; only the trained and published
MTP layer is FP8. Prints one line of JSON per run: acceptance length by exact replay at the trained
depth, on the validation part (the last 60 of the training part) of base, trained and published
weights, and on the held-out part of base and published. Finished runs are not repeated.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import replay
from outrider.serving.config import TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import train
from tests.fp8_target import write_fp8_copy

VALIDATION = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/resume_screening"))
    parser.add_argument("--train", nargs="+", default=["all", "non_routed", "lora"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--depth", type=int, default=5)
    args = parser.parse_args()
    out = args.run / "fp8"
    target = out / "target"
    if not target.exists():
        write_fp8_copy(TargetConfig().directory(), target)
    lines = out / "lines.jsonl"
    known = (
        [json.loads(line)["settings"] for line in lines.read_text().splitlines()]
        if lines.exists()
        else []
    )
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
                    file.write(
                        json.dumps({"settings": settings, **_one(args.run, out, target, settings)})
                        + "\n"
                    )
    print(lines.read_text(), end="")


def _one(run: Path, out: Path, target: Path, settings: dict[str, Any]) -> dict[str, Any]:
    store = FeatureStore.open(run / "states")
    known = {row["id"] for row in store.manifest["sequences"]}
    parts = {
        name: [each for each in part if each in known]
        for name, part in read_json(run / "split" / "parts.json").items()
    }
    parts["train"], parts["validation"] = parts["train"][:-VALIDATION], parts["train"][-VALIDATION:]
    columns = ["sequence_id", "session", "temperature", "top_p"]
    rows = {
        row["sequence_id"]: row
        for row in load_sequences(run / "traffic" / "sequences").select_columns(columns)
    }
    work = out / "_".join(str(value) for value in settings.values())
    result = train(
        target,
        run / "states",
        {name: (row["temperature"], row["top_p"]) for name, row in rows.items()},
        parts,
        SpeculatorConfig(depth=settings["depth"], train=settings["train"]),
        TrainingConfig(
            epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            seed=settings["seed"],
            row_tokens=2048,
            evaluate_every=20,
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
    return {
        "validation": lengths,
        "heldout": replayed,
        "seconds": result["seconds"],
        "steps": result["steps"],
    }


if __name__ == "__main__":
    main()
