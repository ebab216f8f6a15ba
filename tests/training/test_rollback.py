"""Bad batches: their detection, and that an undone one leaves no trace in the weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.training import rollback
from outrider.training.rollback import FEWEST, WINDOW, BadBatch, Rollbacks, check_step, why_bad
from tests.training.corpus import Corpus, make_corpus

RECENT = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.3, 0.7]


@pytest.mark.parametrize(
    ("loss", "norm", "recent", "reason"),
    [
        (float("nan"), 1.0, [], "the loss is nan"),
        (float("inf"), 1.0, RECENT, "the loss is inf"),
        (1.0, float("nan"), RECENT, "the gradient is not finite"),
        (1.0, float("inf"), RECENT, "the gradient is not finite"),
        (1.0, -1.0, RECENT, "the gradient is not finite"),  # how DeepSpeed reports it
        (5.01, 1.0, RECENT, "the loss 5.0100 is more than 5 times the median 1.0000"),
        (4.99, 1.0, RECENT, None),
        (99.0, 1.0, RECENT[: FEWEST - 1], None),
    ],
)
def test_which_steps_are_bad(loss: float, norm: float, recent: list, reason: str | None) -> None:
    assert why_bad(loss, norm, recent) == reason


def test_the_guard_follows_the_descent_and_leaves_out_a_spike() -> None:
    state: dict = {}
    for step in range(100):
        check_step(state, step, 6.0 * 0.95**step, 1.0, ["a"])
    assert len(state["recent_losses"]) == WINDOW
    assert json.loads(json.dumps(state)) == state
    before = list(state["recent_losses"])
    # Smaller than the first losses, and a spike by now.
    with pytest.raises(BadBatch, match="step 101") as bad:
        check_step(state, 100, 1.0, 1.0, ["b", "c"])
    assert (bad.value.step, bad.value.sequences) == (100, ["b", "c"])
    assert state["recent_losses"] == before


def test_rollbacks_are_written_at_once_and_belong_to_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "MOST", 2)
    path = tmp_path / "rollbacks.json"
    rollbacks = Rollbacks(path, "digest", 1e-3)
    line = rollbacks.add(BadBatch(6, "the loss is nan", ["a", "b"]), back_to=4, write=True)
    assert "step 7: the loss is nan; back to step 4" in line and line.endswith("a, b")
    again = Rollbacks(path, "digest", 1e-3)
    assert again.steps == {6}
    assert Rollbacks(path, "another run's", 1e-3).steps == set()
    state = {
        "rollbacks": [{"step": 3, "reason": "", "back_to": 0, "sequences": ["a"]}, *again.list]
    }
    again.join(state)
    assert again.steps == {2, 6} and len(state["rollbacks"]) == 2
    with pytest.raises(
        OutriderError,
        match=r"3 batches had to be undone, at most 2 may be.*held a: leave",
    ):
        again.add(BadBatch(9, "the loss is nan", ["a", "c"]), back_to=4, write=True)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """One training sequence has NaN states, which spoils one step of each epoch."""
    return make_corpus(tmp_path_factory.mktemp("corpus"), broken="s01")


@pytest.mark.parametrize(
    ("stage", "processes"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 2)]
)
def test_after_a_rollback_the_run_equals_one_without_the_batch(
    stage: int, processes: int, broken: Corpus, tmp_path: Path
) -> None:
    settings = {
        "epochs": 3,
        "checkpoint_every": 2,
        "evaluate_every": 100,
        "zero_stage": stage,
        "processes": processes,
    }
    rolled = broken.train(tmp_path / "rolled", **settings)
    assert len(rolled["rollbacks"]) == 3
    for each in rolled["rollbacks"]:
        assert "s01" in each["sequences"] and each["reason"] == "the loss is nan"
        assert each["back_to"] == (each["step"] - 1) // 2 * 2
    # The same run, with the rollbacks known from the start.
    (tmp_path / "wise" / "training").mkdir(parents=True)
    shutil.copy(tmp_path / "rolled" / "training" / "rollbacks.json", tmp_path / "wise" / "training")
    wise = broken.train(tmp_path / "wise", **settings)
    assert wise["rollbacks"] == rolled["rollbacks"]
    assert wise["best"] == rolled["best"]
    weights = [final_masters(tmp_path / run, wise["steps"]) for run in ("rolled", "wise")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert tensor.isfinite().all() and torch.equal(tensor, weights[1][name]), name
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "rolled/logs/metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps), "lines of steps that were undone"
    assert not {each["step"] for each in rolled["rollbacks"]} & set(steps) - {wise["steps"]}


def final_masters(run_dir: Path, steps: int) -> dict[str, torch.Tensor]:
    """Float32 weights and moments at the end."""
    masters: dict[str, torch.Tensor] = {}
    for path in (run_dir / f"training/checkpoints/step-{steps:07d}").glob("rank-*.safetensors"):
        masters |= load_file(path)
    assert masters
    return masters
