"""Streamed training ends with the bits of stored training: losses, weights, validation."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.training.config import TrainingConfig
from tests.training.corpus import Corpus, make_corpus
from tests.training.stores import OFF_POLICY, recorded_pieces
from tests.training.test_trainer import assert_same_run, kill_workers, losses, metrics, once_at_step

STORED = {"epochs": 3, "checkpoint_every": 3, "evaluate_every": 4, "shuffle_tokens": 200}
STREAMED = STORED | {"features": "streamed"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def pieces(corpus: Corpus) -> list[int]:
    of = recorded_pieces(FeatureStore.open(corpus.features_dir))
    return [of[name] for name in corpus.parts["train"]]


@pytest.fixture(scope="module")
def masked(
    corpus: Corpus, pieces: list[int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict]:
    """A stored run whose off-policy sequences keep their places."""
    run_dir = tmp_path_factory.mktemp("masked")
    return run_dir, corpus.train(run_dir, masked=OFF_POLICY, train_pieces=pieces, **STORED)


@pytest.mark.parametrize("cache_pieces", [0, 2])
def test_streamed_training_ends_with_the_bits_of_stored_training(
    cache_pieces: int,
    corpus: Corpus,
    pieces: list[int],
    masked: tuple[Path, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CACHE_PIECES", str(cache_pieces))
    store = "tests.training.stores:JudgedStream"
    corpus.train(tmp_path, feature_store=store, train_pieces=pieces, **STREAMED)
    assert_same_run(masked[0], tmp_path)
    assert metrics(tmp_path)[1]["stream_held_bytes"] > 0
    assert "stream_held_bytes" not in metrics(masked[0])[1]
    assert "MB of states (at most" in capfd.readouterr().out


def test_masked_sequences_change_the_loss(
    corpus: Corpus, pieces: list[int], masked: tuple[Path, dict], tmp_path: Path
) -> None:
    corpus.train(tmp_path, train_pieces=pieces, **STORED)
    assert len(losses(tmp_path)) == len(losses(masked[0]))
    assert losses(tmp_path) != losses(masked[0])


def test_a_killed_streamed_run_ends_with_the_same_bits(
    corpus: Corpus, pieces: list[int], masked: tuple[Path, dict], tmp_path: Path
) -> None:
    arguments = {"feature_store": "tests.training.stores:JudgedStream", "train_pieces": pieces}
    with (
        once_at_step(tmp_path, 5, kill_workers),
        pytest.raises(OutriderError, match="killed by signal 9"),
    ):
        corpus.train(tmp_path, **arguments, **STREAMED)
    assert 5 <= len(losses(tmp_path)) < len(losses(masked[0]))
    corpus.train(tmp_path, **arguments, **STREAMED)
    assert_same_run(masked[0], tmp_path)


def test_a_stream_cannot_drop_what_it_does_not_know_yet() -> None:
    with pytest.raises(ValueError, match="off_policy=drop needs every sequence's score"):
        TrainingConfig(features="streamed", off_policy="drop")
    assert TrainingConfig(features="streamed").masks
    assert not TrainingConfig().masks
    assert TrainingConfig().window_tokens is None
    assert TrainingConfig(features="streamed").window_tokens == 2**20
