"""A small feature store for benchmarks that need no engine.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.states --train 100 --heldout 40         # runs/resume_screening/states
    python -m benchmarks.states --layers 2 8 13                  # auxiliary states, too

States come from transformers in float32, one sequence after another. Captured states differ from
them by bf16 rounding (relative 0.02).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3ForCausalLM

from outrider.common.files import read_json
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.sequences import Tables, load_sequences
from outrider.serving.config import TargetConfig
from outrider.speculators.features import FeatureStream
from outrider.training.config import TrainingConfig


def one_epoch(**settings: Any) -> TrainingConfig:
    """Settings of a short training without evaluations and checkpoints."""
    return TrainingConfig(
        epochs=1,
        learning_rate=1e-3,
        row_tokens=2048,
        rows_per_step=2,
        evaluate_every=10**6,
        checkpoint_every=10**6,
        wandb_project=None,
        **settings,
    )


@torch.no_grad()
def write_states(
    tables: Tables, ids: Sequence[str], directory: Path, layers: Sequence[int] = ()
) -> None:
    """Writes the missing states of these sequences.

    `layers`: the residual stream before each of them is stored, too.
    """
    model = DeepseekV3ForCausalLM.from_pretrained(
        TargetConfig().directory(), dtype=torch.float32
    ).eval()
    hidden_size, source = model.config.hidden_size, {"states": "transformers float32"}
    streams = [FeatureStream(f"layer_{index}", hidden_size) for index in layers]
    with FeatureWriter(
        directory, hidden_size, source, shard_megabytes=4, auxiliary=streams
    ) as writer:
        for row in load_sequences(tables, list(ids)):
            if row["sequence_id"] not in writer.done:
                token_ids = torch.tensor(row["token_ids"])
                out = model.model(token_ids[None], output_hidden_states=bool(layers))
                writer.write(
                    row["sequence_id"],
                    token_ids,
                    out.last_hidden_state[0],
                    row["completion_start"],
                    auxiliary={f"layer_{index}": out.hidden_states[index][0] for index in layers},
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run whose split is done"
    )
    parser.add_argument("--train", type=int, default=100)
    parser.add_argument("--heldout", type=int, default=40)
    parser.add_argument("--layers", type=int, nargs="*", default=[], help="auxiliary states")
    args = parser.parse_args()
    parts = read_json(args.run / "split" / "parts.json")
    ids = parts["train"][: args.train] + parts["heldout"][: args.heldout]
    write_states(args.run / "traffic" / "sequences", ids, args.run / "states", args.layers)


if __name__ == "__main__":
    main()
