"""Acceptance of EAGLE-3 heads by draft vocabulary, and with auxiliary states stored in FP8.

    train-speculator --recipe resume_screening.yaml name=kinds speculator.kind=[mtp,eagle3] \
        --stages ingest,split,capture
    python -m benchmarks.heads runs/kinds --train 200 --heldout 100 --epochs 5

Every head is trained from scratch with the same sequences, seed and settings, and replayed exactly
on held-out responses. The FP8 store is a copy of the captured one. Ratios to the first head are
paired by response, with 95 % intervals over sessions. Finished work is kept in RUN/heads.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.serving.config import TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.head_config import HeadConfig
from outrider.training.config import ScratchConfig, TrainingConfig
from outrider.training.distributed.launch import train

TARGET = TargetConfig().directory()
DEPTH = 5
HEADS: dict[str, tuple[str, Any]] = {
    "99.9 % of the tokens": ("bf16", 0.999),
    "the same, FP8 states": ("fp8", 0.999),
    "1,000 tokens": ("bf16", 1000),
    "2,000 tokens": ("bf16", 2000),
    "all 4,096 tokens": ("bf16", "all"),
}
"""Name of a head -> dtype of the states, draft vocabulary."""


def write_copy(store: FeatureStore, ids: list[str], out: Path, dtype: str) -> FeatureStore:
    """A copy of these sequences of a store, its states in `dtype`."""
    if not (out / MANIFEST).exists():
        source = {"states": f"copy of {store.directory}"}
        streams = store.spec.auxiliary
        with FeatureWriter(
            out, store.hidden_size, source, shard_megabytes=16, dtype=dtype, auxiliary=streams
        ) as writer:
            for name in ids:
                if name not in writer.done:
                    row = store.read(name)
                    writer.write(
                        name,
                        row.token_ids,
                        row.hidden,
                        row.completion_start,
                        None,
                        row.auxiliary,
                    )
    return FeatureStore.open(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run whose auxiliary states are captured")
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--validation", type=int, default=30)
    parser.add_argument("--heldout", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    wanted = {"train": args.train, "validation": args.validation, "heldout": args.heldout}
    parts = {
        name: ids[: wanted[name]]
        for name, ids in read_json(args.run / "split" / "parts.json").items()
        if name in wanted
    }
    out, sequences = args.run / "heads", args.run / "traffic" / "sequences"
    captured = FeatureStore.open(args.run / "features")
    ids = [name for names in parts.values() for name in names]
    stores = {
        dtype: write_copy(captured, ids, out / f"states_{dtype}", dtype)
        for dtype in ("bf16", "fp8")
    }
    for dtype, store in stores.items():
        shards = store.manifest["shards"]
        size = sum(s["bytes"] for s in shards) / sum(s["tokens"] for s in shards)
        print(json.dumps({"states": dtype, "bytes_per_token": round(size)}), flush=True)
    sampling = {
        row["sequence_id"]: (row["temperature"], row["top_p"]) for row in load_sequences(sequences)
    }
    settings = TrainingConfig(
        scratch=ScratchConfig(epochs=args.epochs),
        row_tokens=2048,
        rows_per_step=2,
        evaluate_every=10**6,
        wandb_project=None,
    )
    rows = list(load_sequences(sequences, parts["heldout"]))
    first: ReplaySums | None = None
    for name, (dtype, vocabulary) in HEADS.items():
        folder = out / f"{dtype}_{vocabulary}"
        if not (directory := folder / "speculator").exists():
            speculator = SpeculatorConfig(
                kind="eagle3", depth=DEPTH, head=HeadConfig(draft_vocabulary=vocabulary)
            )
            store = stores[dtype].directory
            train(TARGET, store, sampling, parts, speculator, settings, folder, directory, folder)
        found = replay(directory, TARGET, stores[dtype], rows, DEPTH, "greedy")
        line: dict[str, Any] = {
            "head": name,
            "draft_tokens": read_json(directory / "config.json")["draft_vocab_size"],
            "acceptance_length": round(found.acceptance_length()[DEPTH - 1], 3),
        }
        if first is None:
            first = found
        else:
            ratio = compare(first, found, DEPTH)
            line |= {
                key: [round(v, 4) for v in (e.value, e.low, e.high)] for key, e in ratio.items()
            }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
