"""Training starts over at a lower rate where validation falls below the start's."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.speculators.config import SpeculatorConfig
from outrider.training.checkpoints import TrainerState
from outrider.training.distributed.spec import Preempted
from outrider.training.start_over import rate_share, rewind_state, starts_over
from tests.training.corpus import Corpus, make_corpus
from tests.training.test_trainer import assert_same_run, losses, metrics, once_at_step

STEPS = {"epochs": 4, "checkpoint_every": 2, "evaluate_every": 4}
"""12 steps: evaluations at 4, 8 and 12."""

TOO_HIGH = 0.03


def state(latest: float, best_step: int = 0, started_over: int = 0) -> TrainerState:
    """A state whose start has 1.5 tokens per step at the trained depth."""

    def profile(length: float) -> dict:
        return {"sequences": 1, "tokens": 100, "acceptance_length": [1.2, length], "acceptance": []}

    return {
        "digest": "",
        "refit": False,
        "base": profile(1.5),
        "best": profile(1.5),
        "best_step": best_step,
        "started_over": started_over,
        "latest": profile(latest),
        "evaluated_at": 4,
        "start_peak_bytes": 0,
    }


@pytest.mark.parametrize(
    ("latest", "best_step", "started_over", "again"),
    [
        (1.46, 0, 0, True),
        (1.48, 0, 0, False),  # 1.3 % below: noise, or a dip that passes
        (1.46, 4, 0, False),  # an earlier evaluation was better than the start
        (1.46, 0, 2, True),
        (1.46, 0, 3, False),
    ],
)
def test_only_a_clear_fall_below_the_start_starts_over(
    latest: float, best_step: int, started_over: int, again: bool
) -> None:
    assert starts_over(state(latest, best_step, started_over)) == again


def test_each_start_is_at_a_third_of_the_rate_before() -> None:
    second = rewind_state(state(1.46))
    assert (second["latest"], second["evaluated_at"]) == (second["base"], 0)
    assert rate_share(state(1.46)) == 1 and rate_share(second) == pytest.approx(1 / 3)
    assert rate_share(rewind_state(second)) == pytest.approx(1 / 9)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Validation is on trained sequences, so that the base, which knows them, is clearly better.

    On new random tokens its 1.04 tokens per step are noise, and a fall depends on the processor.
    """
    made = make_corpus(tmp_path_factory.mktemp("corpus"))
    return replace(made, parts={**made.parts, "validation": made.parts["train"][:6]})


@pytest.fixture(scope="module")
def base(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> SpeculatorConfig:
    """A base that has learned this traffic."""
    run_dir = tmp_path_factory.mktemp("base")
    corpus.train(run_dir, epochs=20, evaluate_every=20, checkpoint_every=20, learning_rate=4e-3)
    return SpeculatorConfig(depth=3, base=str(run_dir / "speculator"))


@pytest.fixture(scope="module")
def restarted(
    corpus: Corpus, base: SpeculatorConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict]:
    """A run that starts over."""
    run_dir = tmp_path_factory.mktemp("restarted")
    return run_dir, corpus.train(run_dir, speculator=base, learning_rate=TOO_HIGH, **STEPS)


def test_it_equals_a_run_at_the_lower_rate(
    corpus: Corpus, base: SpeculatorConfig, restarted: tuple[Path, dict], tmp_path: Path
) -> None:
    run_dir, result = restarted
    share = result["peak_learning_rate"] / TOO_HIGH
    assert min(abs(share - 3.0**-times) for times in (1, 2, 3)) < 1e-12
    assert [line["step"] for line in metrics(run_dir) if "loss" in line] == list(range(1, 13))
    assert (
        "training starts over at a peak learning rate of"
        in (run_dir / "logs" / "train.log").read_text()
    )
    lower = corpus.train(
        tmp_path, speculator=base, learning_rate=result["peak_learning_rate"], **STEPS
    )
    assert lower["peak_learning_rate"] == result["peak_learning_rate"]
    torch.testing.assert_close(losses(run_dir), losses(tmp_path), rtol=1e-5, atol=0)
    assert (lower["best_step"], lower["best"]) == (result["best_step"], result["best"])


@pytest.mark.parametrize("at", [3, 6])
def test_stopped_and_resumed_it_ends_with_the_same_bits(
    at: int, corpus: Corpus, base: SpeculatorConfig, restarted: tuple[Path, dict], tmp_path: Path
) -> None:
    """At step 3 the first pass is stopped, at step 6 a later one."""
    settings = {"speculator": base, "learning_rate": TOO_HIGH, **STEPS}
    stop = once_at_step(tmp_path, at, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with stop, pytest.raises(Preempted, match="is saved"):
        corpus.train(tmp_path, **settings)
    checkpoints = tmp_path / "training" / "checkpoints"
    # No pass begins again after step 4 of the last one, which was better than the start.
    assert (checkpoints / "step-0000000").is_dir() == (at < STEPS["evaluate_every"])
    corpus.train(tmp_path, **settings)
    assert_same_run(restarted[0], tmp_path)
