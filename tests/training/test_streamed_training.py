"""Streamed training ends with the bits of stored training where the states are the same."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from tests.training.corpus import Corpus, make_corpus
from tests.training.stores import write_stream
from tests.training.test_trainer import assert_same_run, kill_workers, losses, once_at_step

SETTINGS = {"epochs": 3, "checkpoint_every": 3, "evaluate_every": 4}
STREAM = SETTINGS | {"features": "streamed"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_streamed_run_ends_with_the_bits_of_stored_training(
    processes: int, corpus: Corpus, tmp_path: Path
) -> None:
    corpus.train(tmp_path / "stored", **SETTINGS)
    stream = write_stream(corpus.features_dir, tmp_path / "stream")
    arguments = STREAM | {"store": "OnPolicyStream", "processes": processes}
    run = tmp_path / "streamed"
    with (
        once_at_step(run, 5, kill_workers),
        pytest.raises(OutriderError, match="killed by signal 9"),
    ):
        corpus.at(stream).train(run, **arguments)
    assert 5 <= len(losses(run)) < len(losses(tmp_path / "stored"))
    corpus.at(stream).train(run, **arguments)
    assert_same_run(tmp_path / "stored", run)


def test_off_policy_sequences_of_a_stream_have_no_loss(corpus: Corpus, tmp_path: Path) -> None:
    """Each is found by the process that reads it; the number of processes changes no loss."""
    stream = write_stream(corpus.features_dir, tmp_path / "stream")
    for processes in (1, 2):
        run = tmp_path / str(processes)
        corpus.at(stream).train(run, **STREAM, store="RecordedStream", processes=processes)
    assert_same_run(tmp_path / "1", tmp_path / "2")
    corpus.train(tmp_path / "stored", **SETTINGS)
    assert losses(tmp_path / "1") != losses(tmp_path / "stored")
