"""EAGLE-3 heads in training: from scratch, from a base, in shards, and what is published."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import replay
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import check_speculator, drafter_kind_of, trainable_kind
from outrider.speculators.kinds.eagle3 import checkpoint
from outrider.training.config import BASE_RATE, FITTED_RATE
from outrider.training.distributed.spec import Preempted
from tests.eagle3_head import write_eagle3_head
from tests.training.corpus import Corpus, make_corpus
from tests.training.test_trainer import assert_same_run, once_at_step

DEPTH = 3
SETTINGS: dict[str, Any] = {
    "scratch_epochs": 30,
    "learning_rate": 5e-3,
    "evaluate_every": 1000,
    "checkpoint_every": 1000,
    "rows_per_step": 2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The usual corpus with the outputs of layers 1 and 2, from transformers."""
    made = make_corpus(tmp_path_factory.mktemp("eagle3"), 10, 4, layers=(1, 2))
    # A random target's texts have nothing in common: what is learned shows on the same ones.
    ids = made.parts["train"]
    parts = {"train": ids, "validation": [*ids[:3], *made.parts["validation"][:1]]}
    return dataclasses.replace(made, parts=parts)


def config(**changes: Any) -> SpeculatorConfig:
    head = changes.pop("head", {"draft_vocabulary": 0.9})
    kind = changes.pop("kind", "eagle3")
    return SpeculatorConfig(kind=kind, depth=DEPTH, head=HeadConfig(**head), **changes)


def test_a_head_from_scratch_learns(corpus: Corpus, tmp_path: Path) -> None:
    result = corpus.train(tmp_path, speculator=config(), **SETTINGS)
    best, start = (result[name]["acceptance_length"][-1] for name in ("best", "base"))
    assert best > start + 0.1
    # The closed-form start drafts, with its own state too; chance is 1 in 97.
    assert result["base"]["acceptance"][0] > 0.2 and result["base"]["acceptance"][1] > 0.1
    assert result["exported"]["acceptance_length"][-1] == pytest.approx(best, rel=0.05)
    assert drafter_kind_of(tmp_path / "speculator").name == "eagle3"
    check_speculator(tmp_path / "speculator", corpus.target_dir)
    # 30 epochs are those of training.scratch: the section's own are 2.
    assert result["steps"] > 2 * 10


def test_a_warm_start_is_trained_on_the_tokens_of_the_traffic(
    corpus: Corpus, tmp_path: Path
) -> None:
    base = write_eagle3_head(corpus.target_dir, tmp_path / "base", layers=[1, 2])
    result = corpus.train(tmp_path, speculator=config(base=str(base)), **SETTINGS)
    assert result["best"]["acceptance_length"][-1] > result["base"]["acceptance_length"][-1]
    load = trainable_kind("eagle3").load
    before, after = (
        load(path, corpus.target_dir, torch.float32) for path in (base, tmp_path / "speculator")
    )
    assert len(before.target_ids_D) == len(after.target_ids_D)
    assert not torch.equal(before.target_ids_D, after.target_ids_D)


def test_training_starts_from_the_better_of_base_and_fit(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = write_eagle3_head(corpus.target_dir, tmp_path / "base", layers=[1, 2])
    from_random = {"speculator": config(base=str(random)), **SETTINGS}
    fitted = corpus.train(tmp_path / "fitted", **from_random)
    assert fitted["base"]["acceptance"][0] > 0.2  # the random base's is about 1 in 97
    resumed = tmp_path / "resumed"
    with (
        once_at_step(resumed, 2, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Preempted, match="is saved"),
    ):
        corpus.train(resumed, **from_random)
    with monkeypatch.context() as patched:  # a resumed run does not fit again
        patched.setattr(checkpoint, "fit_head", None)
        corpus.train(resumed, **from_random)
    assert_same_run(tmp_path / "fitted", resumed)
    trained = str(tmp_path / "fitted" / "speculator")
    kept = corpus.train(
        tmp_path / "kept", speculator=config(base=trained), **SETTINGS | {"epochs": 1}
    )
    expected = fitted["exported"]["acceptance_length"]
    assert kept["base"]["acceptance_length"] == pytest.approx(expected, rel=1e-3)
    # A base that knows the traffic is trained at the lowest rate.
    rate = SETTINGS["learning_rate"]
    assert fitted["peak_learning_rate"] == pytest.approx(FITTED_RATE * rate)
    assert kept["peak_learning_rate"] == pytest.approx(BASE_RATE * rate)


@pytest.mark.parametrize("kind", ["p_eagle", "dflash", "dspark"])
def test_a_parallel_head_learns_and_is_replayed(corpus: Corpus, tmp_path: Path, kind: str) -> None:
    result = corpus.train(tmp_path, speculator=config(kind=kind), **SETTINGS)
    best, start = (result[name]["acceptance_length"] for name in ("best", "base"))
    # The second draft too, which reads neither a state of the target nor a draft.
    assert best[0] > start[0] + 0.2 and best[1] > best[0] + 0.05
    assert drafter_kind_of(tmp_path / "speculator").name == kind
    check_speculator(tmp_path / "speculator", corpus.target_dir)
    published = dict(trainable_kind(kind).swap_tensors(tmp_path / "speculator"))
    assert kind != "dspark" or published["confidence_head.proj.bias"] != 0  # its start
    rows = [
        {"sequence_id": name, "session": name, "temperature": 0.6, "top_p": 0.95, "top_k": 0}
        for name in corpus.parts["validation"]
    ]
    store = FeatureStore.open(corpus.features_dir)
    found = replay(tmp_path / "speculator", corpus.target_dir, store, rows, depth=DEPTH)
    expected = result["exported"]["acceptance_length"]
    assert found.acceptance_length() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_shards_over_two_processes_train_the_same(
    stage: int, corpus: Corpus, tmp_path: Path
) -> None:
    short = SETTINGS | {"scratch_epochs": 2}
    one = corpus.train(tmp_path / "one", speculator=config(), **short)
    two = corpus.train(
        tmp_path / "two", speculator=config(), processes=2, zero_stage=stage, **short
    )
    # The first process fits the start; the other has its weights.
    assert two["base"]["acceptance"] == pytest.approx(one["base"]["acceptance"], abs=1e-6)
    assert two["best"]["acceptance"] == pytest.approx(one["best"]["acceptance"], abs=2e-3)
    kind = trainable_kind("eagle3")
    pairs = zip(
        kind.swap_tensors(tmp_path / "one" / "speculator"),
        kind.swap_tensors(tmp_path / "two" / "speculator"),
        strict=True,
    )
    for (name, ours), (_, theirs) in pairs:
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2, msg=name)
