"""Streamed training ends with the bits of stored training where the states are the same."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.training.config import TrainingConfig
from tests.training.corpus import Corpus, make_corpus
from tests.training.stores import OFF_POLICY, write_stream
from tests.training.test_trainer import assert_same_run, kill_workers, losses, once_at_step

STORED = {"epochs": 3, "checkpoint_every": 3, "evaluate_every": 4, "off_policy": "mask"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def masked(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored run whose off-policy sequences keep their places."""
    run_dir = tmp_path_factory.mktemp("masked")
    corpus.train(run_dir, masked=OFF_POLICY, **STORED)
    return run_dir


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_streamed_run_ends_with_the_bits_of_stored_training(
    processes: int, corpus: Corpus, masked: Path, tmp_path: Path
) -> None:
    """Off-policy sequences are found while training, each by the process that reads it."""
    stream = write_stream(corpus.features_dir, tmp_path / "stream")
    arguments = STORED | {
        "feature_store": "tests.training.stores:RecordedStream",
        "features": "streamed",
        "processes": processes,
    }
    with (
        once_at_step(tmp_path, 5, kill_workers),
        pytest.raises(OutriderError, match="killed by signal 9"),
    ):
        corpus.at(stream).train(tmp_path, **arguments)
    assert 5 <= len(losses(tmp_path)) < len(losses(masked))
    corpus.at(stream).train(tmp_path, **arguments)
    assert_same_run(masked, tmp_path)
    found = [read_json(path) for path in stream.glob("off_policy.rank*.json")]
    assert {name for each in found for name in each} == set(OFF_POLICY)


def test_masked_sequences_change_the_loss(corpus: Corpus, masked: Path, tmp_path: Path) -> None:
    corpus.train(tmp_path, **STORED)
    assert len(losses(tmp_path)) == len(losses(masked))
    assert losses(tmp_path) != losses(masked)


def test_a_stream_cannot_drop_what_it_does_not_know_yet() -> None:
    with pytest.raises(ValueError, match="off_policy=drop needs every sequence's score"):
        TrainingConfig(features="streamed", off_policy="drop")
    assert TrainingConfig(features="streamed").masks
    assert not TrainingConfig().masks
