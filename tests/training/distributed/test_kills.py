"""`kill -9` at random moments: the resumed run ends with the same bits as an uninterrupted one.

    python -m pytest tests/training/distributed/test_kills.py -m slow        # 20 kills, minutes

The moments come from a seed and count from the first line of metrics, so that they fall into steps,
evaluations and the writing of checkpoints; some fall into the start.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig
from tests.training.corpus import Corpus, make_corpus, training_spec
from tests.training.test_trainer import assert_same_run

SETTINGS = {
    "epochs": 20,
    "checkpoint_every": 2,
    "evaluate_every": 5,
    "row_tokens": 128,
    "learning_rate": 2e-3,
    "compute": "bf16",
    "parity": "warn",
}
"""60 steps, a checkpoint or an evaluation after most of them; in bf16 with float32 masters, as for
R1's layer."""

KILLS = 20

RUN = """
import sys
from outrider.training.distributed.launch import train
from outrider.training.distributed.spec import TrainingSpec
train(TrainingSpec.model_validate_json(sys.argv[1]))
"""


def start(corpus: Corpus, run_dir: Path) -> subprocess.Popen:
    """Starts the launcher. The guard of its process tree kills the worker when it ends."""
    settings = TrainingConfig(**SETTINGS)
    speculator = SpeculatorConfig(depth=3)
    given = corpus.target_dir, corpus.features_dir, corpus.parts
    spec = training_spec(run_dir, *given, speculator, settings)
    command = [sys.executable, "-c", RUN, spec.model_dump_json()]
    # The same number of threads in every run: it decides the order of sums.
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def signs_of_life(run_dir: Path) -> tuple:
    """Size and time of metrics.jsonl, which change while a run works."""
    metrics = run_dir / "logs" / "metrics.jsonl"
    return (metrics.stat().st_size, metrics.stat().st_mtime_ns) if metrics.exists() else ()


def kill_at_random(corpus: Corpus, run_dir: Path, chance: random.Random) -> str | None:
    """Starts a run and kills it; returns what it was doing, or None if it finished first."""
    before = signs_of_life(run_dir)
    process = start(corpus, run_dir)
    in_the_start = chance.random() < 0.15
    patience = chance.uniform(0, 1.5)
    while not in_the_start and process.poll() is None and signs_of_life(run_dir) == before:
        time.sleep(0.005)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        # The guard kills the worker a moment later, and it must not write into the next run.
        time.sleep(1.5)
        drafts = [path.name for path in (run_dir / "training").rglob(".*")]
        return f"writing {drafts[0]}" if drafts else "at its start" if in_the_start else "training"
    assert process.returncode == 0
    return None


def finish(corpus: Corpus, run_dir: Path) -> None:
    assert start(corpus, run_dir).wait() == 0


def masters(run_dir: Path) -> dict[str, torch.Tensor]:
    """DeepSpeed's float32 masters and moments in the newest checkpoint, by file and name."""
    newest = sorted((run_dir / "training" / "checkpoints").glob("step-*"))[-1]
    state = {}
    for path in sorted(newest.glob("rank-*.safetensors")):
        for name, tensor in load_file(path).items():
            state[f"{path.name} {name}"] = tensor
    return state


def assert_same_end(expected: Path, found: Path) -> None:
    """Every step's loss, the published weights, and the masters."""
    assert_same_run(expected, found)
    ours = masters(found)
    theirs = masters(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name]), name


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_random_moments_training_ends_with_the_same_bits(
    corpus: Corpus, tmp_path: Path
) -> None:
    finish(corpus, tmp_path / "whole")
    chance = random.Random(KILLS)
    moments = []
    while len(moments) < KILLS:
        moment = kill_at_random(corpus, tmp_path / "killed", chance)
        if moment is None:  # it finished: start again
            assert_same_end(tmp_path / "whole", tmp_path / "killed")
            (tmp_path / "killed").rename(tmp_path / f"ended-{len(moments)}")
        else:
            moments.append(moment)
    finish(corpus, tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    print(f"{len(moments)} kills: {moments}")
