"""A kind that only this test knows goes from training to replay through code that names no kind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import replay
from outrider.pipeline.preflight import check_target
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.base import base_of
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import KINDS, kind_of, trainable_kind
from outrider.speculators.kinds.protocol import Origin, TrainableKind
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import train
from tests.speculators.kinds.toy_kind import Toy, run_toy, toy_corpus
from tests.training.corpus import FEATURE_STORE, Corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The usual corpus with the toy's auxiliary stream."""
    return toy_corpus(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    kind = Toy()
    monkeypatch.setitem(KINDS, kind.name, kind)
    return kind


@pytest.fixture(scope="module")
def trained(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A run from scratch, in a rank that knows the kind: the published directory, the result."""
    run_dir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "toy", Toy())
        result = train(
            corpus.target_dir,
            corpus.features_dir,
            {name: (0.0, 1.0, 0) for part in corpus.parts.values() for name in part},
            corpus.parts,
            SpeculatorConfig(kind="toy", depth=3),
            TrainingConfig(
                scratch_epochs=30,
                learning_rate=5e-3,
                evaluate_every=30,
                checkpoint_every=1000,
                row_tokens=128,
                compute="fp32",
                wandb_project=None,
            ),
            run_dir / "training",
            run_dir / "speculator",
            run_dir / "logs",
            feature_store=FEATURE_STORE,
            run=run_toy,
        )
    return run_dir / "speculator", result


def test_the_protocol_is_met(toy: Toy) -> None:
    assert isinstance(toy, TrainableKind)
    assert trainable_kind("toy") is toy
    with pytest.raises(OutriderError, match="'ngram' can be served and replayed"):
        trainable_kind("ngram")
    with pytest.raises(OutriderError, match="'medusa' is not known; the kinds are"):
        trainable_kind("medusa")


def test_from_scratch_to_replay(
    corpus: Corpus, toy: Toy, trained: tuple[Path, dict[str, Any]]
) -> None:
    published, result = trained
    check_target(corpus.target_dir, SpeculatorConfig(kind="toy"))
    best, base = (result[name]["acceptance_length"][-1] for name in ("best", "base"))
    assert best > base + 0.03
    start = toy.start(
        Origin(corpus.target_dir, None), SpeculatorConfig(), torch.float32, "cpu", seed=0
    )
    after = dict(toy.tensors(published))
    for name, parameter in start.named_parameters():
        assert not torch.equal(parameter, after[name]), name
    assert kind_of(published) is toy
    settings = Drafting(Speculator.named(published), 3).settings()
    assert settings == {"method": "toy", "model": str(published), "num_speculative_tokens": 3}
    rows = [
        {"sequence_id": name, "session": name, "temperature": 0.0, "top_p": 1.0, "top_k": 0}
        for name in corpus.parts["validation"]
    ]
    store = FeatureStore.open(corpus.features_dir)
    found = replay(published, corpus.target_dir, store, rows, depth=3)
    expected = result["exported"]["acceptance_length"]
    assert found.acceptance_length() == pytest.approx(expected, rel=1e-6)
    assert found.acceptance_length()[-1] == pytest.approx(best, rel=1e-6)


def test_a_target_without_a_speculator_needs_a_base(corpus: Corpus, tmp_path: Path) -> None:
    config = json.loads((corpus.target_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(OutriderError, match=r"ships no speculator of its own; .* speculator\.base"):
        base_of(None, tmp_path)
    assert base_of(None, corpus.target_dir).directory == corpus.target_dir
    assert base_of("mtp", corpus.target_dir) == base_of(None, corpus.target_dir)
    assert base_of("none", tmp_path).directory is None
    with pytest.raises(OutriderError, match="ships no mtp of its own"):
        base_of("mtp", tmp_path)
