"""Training tokens/s and MFU on random states of the embedded target."""

import json
import math
import statistics
from pathlib import Path

from outrider.common.files import read_json
from outrider.pipeline.gpu_check.check import CheckFailed, Figures
from outrider.pipeline.gpu_check.inputs import TARGET, K

WARM_UP = 2
"""Steps that are left out: compilation, first allocations."""


def on_gpu(folder: Path) -> Figures:
    """Rows of 8,192 tokens."""
    return _trained(folder, row_tokens=8192, steps=12)


def on_cpu(folder: Path) -> Figures:
    """Rows of 256 tokens."""
    return _trained(folder, row_tokens=256, steps=4)


def _trained(folder: Path, row_tokens: int, steps: int) -> Figures:
    import torch

    from outrider.data.features.feature_writer import FeatureWriter
    from outrider.speculators.config import SpeculatorConfig
    from outrider.training.config import TrainingConfig
    from outrider.training.distributed.launch import train

    config = read_json(TARGET.directory() / "config.json")
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    parts = {
        "train": [f"train-{number}" for number in range(2 * steps)],
        "validation": ["validation-0"],
    }
    names = [*parts["train"], *parts["validation"]]
    with FeatureWriter(folder / "states", hidden, {"states": "random"}) as writer:
        for name in names:
            token_ids = torch.randint(0, vocabulary, (row_tokens,), generator=generator)
            states = torch.randn(row_tokens, hidden, generator=generator)
            writer.write(name, token_ids, states, row_tokens // 2)
    train(
        TARGET.directory(),
        folder / "states",
        dict.fromkeys(names, (0.6, 0.95)),
        parts,
        SpeculatorConfig(depth=K),
        TrainingConfig(
            epochs=1,
            row_tokens=row_tokens,
            rows_per_step=2,
            evaluate_every=1000,
            checkpoint_every=1000,
            parity="warn",  # random states make near ties
            wandb_project=None,
        ),
        folder / "training",
        folder / "speculator",
        folder / "logs",
    )
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [line for line in map(json.loads, lines) if "loss" in line]
    if len(measured) != steps or not all(math.isfinite(line["loss"]) for line in measured):
        raise CheckFailed(f"{len(measured)} of {steps} steps have a finite loss")
    later = measured[WARM_UP:]
    figures = {
        f"training_{name}": statistics.median(line[name] for line in later)
        for name in ("tokens_per_s", "mfu")
        if all(name in line for line in later)
    }
    return {"steps": steps, "row_tokens": row_tokens, **figures}
