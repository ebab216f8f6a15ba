"""A kind that only this test knows goes from training to replay through code that names no kind."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore, FeatureWriter
from outrider.eval.replay.replay import replay
from outrider.recipes.pipeline.preflight import check_target
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.interpolate import interpolate
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import FeatureStream
from outrider.speculators.kinds import KINDS, base_directory, kind_of, trainable_kind
from outrider.speculators.kinds.protocol import Origin, TrainableKind
from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import start_environment
from outrider.training.distributed.spec import Sampling, TrainingSpec
from outrider.training.trainer import Trainer
from tests.speculators.kinds.toy_kind import STREAM, WIDTH, Toy
from tests.training.corpus import Corpus, make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The usual corpus, its store with an auxiliary stream: the token's parity, noised."""
    folder = tmp_path_factory.mktemp("toy")
    made = make_corpus(folder)
    store = FeatureStore.open(made.features_dir)
    streams = (FeatureStream(STREAM, WIDTH),)
    with FeatureWriter(folder / "states", store.hidden_size, {}, auxiliary=streams) as writer:
        for name in store.sequence_ids:
            row = store.read(name)
            auxiliary = {STREAM: row.hidden[:, :WIDTH] * 0.5}
            writer.write(name, row.token_ids, row.hidden, row.completion_start, None, auxiliary)
    return dataclasses.replace(made, features_dir=folder / "states")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    kind = Toy()
    monkeypatch.setitem(KINDS, kind.name, kind)
    return kind


def spec_of(corpus: Corpus, out: Path, speculator: SpeculatorConfig, **training: object):
    training = {"wandb_project": None, "row_tokens": 64, "rows_per_step": 2} | training
    return TrainingSpec(
        target_dir=corpus.target_dir,
        features_dir=corpus.features_dir,
        feature_store="outrider.data.features.feature_store:FeatureStore",
        train=corpus.parts["train"],
        validation=corpus.parts["validation"],
        sampling={
            name: Sampling(temperature=0.0)
            for name in (*corpus.parts["train"], *corpus.parts["validation"])
        },
        speculator=speculator,
        training=TrainingConfig(**training),
        out_dir=out / "training",
        publish_dir=out / "speculator",
        log_dir=out,
    )


def test_the_protocol_is_met(toy: Toy) -> None:
    assert isinstance(toy, TrainableKind)
    assert trainable_kind("toy") is toy
    with pytest.raises(OutriderError, match="'eagle3' can be served and counted"):
        trainable_kind("eagle3")
    with pytest.raises(OutriderError, match="'medusa' is not known; the kinds are"):
        trainable_kind("medusa")


def test_a_kind_that_is_not_registered_is_no_config() -> None:
    with pytest.raises(ValueError, match="'toy' is not known; kinds that train: mtp"):
        SpeculatorConfig(kind="toy")
    with pytest.raises(ValueError, match="'ngram' can be evaluated, but not trained"):
        SpeculatorConfig(kind="ngram")


def test_from_scratch_to_replay(
    corpus: Corpus, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    start_environment()
    config = SpeculatorConfig(kind="toy", depth=3)
    check_target(corpus.target_dir, config)
    settings = {"epochs": 30, "evaluate_every": 30, "checkpoint_every": 1000}
    spec = spec_of(corpus, tmp_path, config, compute="fp32", learning_rate=1e-2, **settings)
    store = FeatureStore.open(corpus.features_dir)
    trainer = Trainer(spec, store)
    assert trainer.origin.base_dir is None  # the target's own speculator is of another kind
    before = {name: tensor.clone() for name, tensor in trainer.unroll.speculator.named_parameters()}
    result = trainer.run()
    after = dict(trainer.unroll.speculator.named_parameters())
    assert all(not torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert result["best"]["acceptance_length"][-1] > result["base"]["acceptance_length"][-1]

    published = tmp_path / "speculator"
    assert kind_of(published) is toy
    assert Speculator.named(published).settings(3)["method"] == "toy"
    rows = [
        {"sequence_id": s, "session": s, "temperature": 0.0, "top_p": 1.0}
        for s in corpus.parts["validation"]
    ]
    found = replay(published, corpus.target_dir, store, rows, depth=3)
    assert found.acceptance_length() == pytest.approx(
        result["exported"]["acceptance_length"], rel=1e-6
    )
    # Odd tokens are outside the draft vocabulary: nothing there is ever accepted.
    assert found.acceptance_length()[0] < 2.0

    half = tmp_path / "half"
    untrained = tmp_path / "training" / "best" / "step-0000000"
    first = untrained if untrained.is_dir() else published
    interpolate(first, published, 0.5, half)
    assert kind_of(half) is toy
    with pytest.raises(OutriderError, match="two kinds cannot be averaged"):
        interpolate(corpus.target_dir, published, 0.5, tmp_path / "mixed")


def test_a_store_without_its_states_is_refused(corpus: Corpus, toy: Toy, tmp_path: Path) -> None:
    plain = make_corpus(tmp_path, train_sequences=2, validation_sequences=1)
    spec = spec_of(plain, tmp_path, SpeculatorConfig(kind="toy", depth=2))
    with pytest.raises(OutriderError, match=r"the speculator reads layer_1 \(4 values\)"):
        Trainer(spec, FeatureStore.open(plain.features_dir))


def test_a_warm_start_is_the_base(corpus: Corpus, toy: Toy, tmp_path: Path) -> None:
    scratch = toy.start(
        Origin(corpus.target_dir, None), SpeculatorConfig(), torch.float32, "cpu", seed=3
    )
    toy.write(
        toy.trained(scratch, scratch.state_dict()),
        Origin(corpus.target_dir, None),
        tmp_path / "base",
    )
    assert base_directory(str(tmp_path / "base"), corpus.target_dir) == tmp_path / "base"
    warm = toy.start(
        Origin(corpus.target_dir, tmp_path / "base"),
        SpeculatorConfig(),
        torch.float32,
        "cpu",
        seed=0,
    )
    for name, tensor in scratch.state_dict().items():
        assert torch.equal(tensor, warm.state_dict()[name]), name


def test_a_target_without_a_speculator_needs_a_base(corpus: Corpus, tmp_path: Path) -> None:
    config = json.loads((corpus.target_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(OutriderError, match=r"ships no speculator of its own; .* speculator\.base"):
        base_directory(None, tmp_path)
    assert base_directory(None, corpus.target_dir) == corpus.target_dir
