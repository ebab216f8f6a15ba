"""Acceptance with hidden states stored in bf16 and in FP8.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.state_dtype [--run runs/resume_screening] [--train 200] [--heldout 100]

States come from transformers in float32, so no engine is needed; the two stores differ only in
dtype. A speculator is trained from each store with the same settings and replayed from both. Ratios
fp8 / bf16 of the acceptance length are paired by response, with 95 % intervals over sessions.
Prints lines of JSON; finished work is kept in RUN/state_dtype.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3ForCausalLM

from outrider.common.files import read_json
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.serving.config import TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import train

DTYPES = ("bf16", "fp8")
TARGET = TargetConfig().directory()
DEPTH = 5


@torch.no_grad()
def write_stores(rows: Any, out: Path) -> None:
    """Both stores in one pass over the target."""
    if all((out / dtype / MANIFEST).exists() for dtype in DTYPES):
        return
    model = DeepseekV3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    hidden, source = model.config.hidden_size, {"states": "transformers float32"}
    with (
        FeatureWriter(out / "bf16", hidden, source, shard_megabytes=4) as plain,
        FeatureWriter(out / "fp8", hidden, source, shard_megabytes=4, dtype="fp8") as small,
    ):
        for row in rows:
            token_ids = torch.tensor(row["token_ids"])
            hidden_TH = model.model(token_ids[None]).last_hidden_state[0]
            for writer in (plain, small):
                if row["sequence_id"] not in writer.done:
                    writer.write(row["sequence_id"], token_ids, hidden_TH, row["completion_start"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run whose split is done"
    )
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--validation", type=int, default=30)
    parser.add_argument("--heldout", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--drafts",
        nargs="+",
        default=["greedy", "probabilistic"],
        help="draft sampling methods",
    )
    args = parser.parse_args()
    out, wanted = (
        args.run / "state_dtype",
        {"train": args.train, "validation": args.validation, "heldout": args.heldout},
    )
    parts = {
        name: ids[: wanted[name]]
        for name, ids in read_json(args.run / "split" / "parts.json").items()
        if name in wanted
    }
    sequences = args.run / "traffic" / "sequences"
    write_stores(load_sequences(sequences, [i for ids in parts.values() for i in ids]), out)
    stores = {dtype: FeatureStore.open(out / dtype) for dtype in DTYPES}
    tokens = sum(shard["tokens"] for shard in stores["bf16"].manifest["shards"])
    size = {
        d: sum(shard["bytes"] for shard in stores[d].manifest["shards"]) / tokens for d in DTYPES
    }
    print(json.dumps({"tokens": tokens, "bytes_per_token": size}), flush=True)

    speculators = {"base": TARGET}
    sampling = {
        row["sequence_id"]: (row["temperature"], row["top_p"]) for row in load_sequences(sequences)
    }
    for dtype in DTYPES:
        speculators[f"trained on {dtype}"] = directory = out / f"speculator_{dtype}"
        if not directory.exists():
            settings = TrainingConfig(
                epochs=args.epochs,
                learning_rate=1e-3,
                row_tokens=2048,
                evaluate_every=1000,
                wandb_project=None,
            )
            work = out / f"training_{dtype}"
            speculator = SpeculatorConfig(depth=DEPTH)
            train(TARGET, out / dtype, sampling, parts, speculator, settings, work, directory, work)

    rows = list(load_sequences(sequences, parts["heldout"]))
    replayed: dict[tuple, ReplaySums] = {}

    def replay_once(name: str, dtype: str, drafts: str) -> ReplaySums:
        key = (name, dtype, drafts)
        if key not in replayed:
            replayed[key] = replay(speculators[name], TARGET, stores[dtype], rows, DEPTH, drafts)
        return replayed[key]

    pairs = [
        ((name, "bf16"), (name, "fp8"), "the same speculator, other states") for name in speculators
    ]
    pairs.append(
        (("trained on bf16", "bf16"), ("trained on fp8", "bf16"), "trained on other states")
    )
    for drafts, (before, after, what) in itertools.product(args.drafts, pairs):
        found = compare(replay_once(*before, drafts), replay_once(*after, drafts), DEPTH)
        line = {"what": what, "from": before, "to": after, "drafts": drafts, "n": len(rows)}
        line |= {key: [round(v, 4) for v in (e.value, e.low, e.high)] for key, e in found.items()}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
