"""Training tokens/s and MFU on random states, by one process and by a rank on each GPU."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.common.files import read_json
from outrider.data.features.feature_writer import FeatureWriter
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates
from tests.gpu.conftest import gpus_used
from tests.gpu.inputs import NANO, K
from tests.training.corpus import Corpus

WARM_UP = 2
"""Steps that are left out: compilation, first allocations."""


def test_speed(on_gpu, tmp_path, record_property):
    row_tokens, steps = (8192, 12) if on_gpu else (256, 4)
    lines = trained(tmp_path, row_tokens, steps, rows_per_step=2)
    for name in ("tokens_per_s", "mfu"):
        values = [line[name] for line in lines[WARM_UP:] if name in line]
        if values:
            record_property(f"training_{name}", statistics.median(values))


@pytest.mark.gpu
def test_ranks_of_zero_2_take_the_steps_of_one_process(two_gpus, tmp_path, record_property):
    ranks = len(gpus_used())
    one = trained(tmp_path / "one", 1024, 4, rows_per_step=ranks)
    more = trained(tmp_path / "more", 1024, 4, rows_per_step=ranks, processes=ranks, zero_stage=2)
    for single, several in zip(one, more, strict=True):
        assert several["loss"] == pytest.approx(single["loss"], rel=0.01)
    record_property(f"training_tokens_per_s_{ranks}_ranks", more[-1]["tokens_per_s"])


def trained(
    folder: Path, row_tokens: int, steps: int, rows_per_step: int, **settings: Any
) -> list[dict[str, float]]:
    """The measurements of each step."""
    config = read_json(NANO.directory() / "config.json")
    hidden = config["hidden_size"]
    vocabulary = config["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    parts = {
        "train": [f"train-{number}" for number in range(rows_per_step * steps)],
        "validation": ["validation-0"],
    }
    names = [*parts["train"], *parts["validation"]]
    spec = FeatureSpec(()).stored(hidden)
    with FeatureWriter(folder / "states", spec, {"states": "random"}) as writer:
        for name in names:
            token_ids = torch.randint(0, vocabulary, (row_tokens,), generator=generator)
            state_TH = torch.randn(row_tokens, hidden, generator=generator)
            writer.write(name, SequenceStates(token_ids, row_tokens // 2, {FINAL_NORM: state_TH}))
    Corpus(NANO.directory(), folder / "states", parts).train(
        folder,
        depth=K,
        launch=True,
        epochs=1,
        row_tokens=row_tokens,
        rows_per_step=rows_per_step,
        evaluate_every=1000,
        checkpoint_every=1000,
        compute="bf16",
        learning_rate=5e-4,
        parity="warn",  # random states make near ties
        **settings,
    )
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [line for line in map(json.loads, lines) if "loss" in line]
    assert len(measured) == steps
    assert all(math.isfinite(line["loss"]) for line in measured)
    return measured
