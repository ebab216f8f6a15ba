"""Training on random states: each kind, tokens/s and MFU, and a rank on each GPU."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.common.files import read_json
from outrider.data.features.feature_writer import FeatureWriter
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import (
    FINAL_NORM,
    FeatureSpec,
    FeatureStream,
    SequenceStates,
    layer_name,
)
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import trainable_names
from tests.gpu.conftest import gpus_used
from tests.gpu.inputs import NANO, K, random_r1
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


@pytest.mark.parametrize("kind", trainable_names())
def test_each_kind_trains(on_gpu, kind, tmp_path, record_property):
    """New heads, where there is one with a closed-form fit, and validation before and after."""
    row_tokens, steps = (2048, 8) if on_gpu else (128, 3)
    layers: tuple[int, ...] = ()
    head = HeadConfig()  # an MTP layer has the target's layout and vocabulary
    if kind != "mtp":
        layers = (2, 8, 13)
        head = HeadConfig(draft_vocabulary=512, layers=layers)
    speculator = SpeculatorConfig(kind=kind, depth=K, head=head)
    lines = trained(
        tmp_path,
        row_tokens,
        steps,
        rows_per_step=2,
        layers=layers,
        speculator=speculator,
        scratch_epochs=1,
    )
    record_property("loss", lines[-1]["loss"])


def test_experts_read_from_fp8_blocks_train(on_gpu, tmp_path, record_property):
    row_tokens, steps = (2048, 8) if on_gpu else (128, 2)
    target = random_r1(tmp_path, fp8=True).directory()
    lines = trained(tmp_path / "run", row_tokens, steps, rows_per_step=2, target_dir=target)
    record_property("loss", lines[-1]["loss"])


@pytest.mark.gpu
def test_ranks_of_zero_2_take_the_steps_of_one_process(two_gpus, tmp_path, record_property):
    """Twin: tests/training/test_trainer.py, with gloo."""
    ranks = len(gpus_used())
    one = trained(tmp_path / "one", 1024, 4, rows_per_step=ranks)
    more = trained(tmp_path / "more", 1024, 4, rows_per_step=ranks, processes=ranks, zero_stage=2)
    for single, several in zip(one, more, strict=True):
        assert several["loss"] == pytest.approx(single["loss"], rel=0.01)
    record_property(f"training_tokens_per_s_{ranks}_ranks", more[-1]["tokens_per_s"])


def trained(
    folder: Path,
    row_tokens: int,
    steps: int,
    rows_per_step: int,
    layers: tuple[int, ...] = (),
    target_dir: Path | None = None,
    speculator: SpeculatorConfig | None = None,
    **settings: Any,
) -> list[dict[str, float]]:
    """The measurements of each step."""
    target_dir = target_dir or NANO.directory()
    config = read_json(target_dir / "config.json")
    hidden = config["hidden_size"]
    vocabulary = config["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    parts = {
        "train": [f"train-{number}" for number in range(rows_per_step * steps)],
        "validation": ["validation-0"],
    }
    names = [*parts["train"], *parts["validation"]]
    auxiliary = FeatureSpec(tuple(FeatureStream(layer_name(n), hidden) for n in layers))
    spec = auxiliary.stored(hidden)
    with FeatureWriter(folder / "states", spec, {"states": "random"}) as writer:
        for name in names:
            token_ids = torch.randint(0, vocabulary, (row_tokens,), generator=generator)
            streams = {
                stream: torch.randn(row_tokens, hidden, generator=generator)
                for stream in (FINAL_NORM, *auxiliary.names)
            }
            writer.write(name, SequenceStates(token_ids, row_tokens // 2, streams))
    Corpus(target_dir, folder / "states", parts).train(
        folder,
        depth=K,
        speculator=speculator,
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
