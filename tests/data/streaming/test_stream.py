"""Streamed training through a Ray cluster on this machine: two ranks, recorded states."""

import dataclasses
from pathlib import Path

import pytest

from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.streaming.remote_desk import connect, start_desk
from outrider.data.streaming.stream import SOURCE, Streamed, streaming
from tests.data.streaming.recorded import RecordedReplicas, streamed_corpus
from tests.training.corpus import Corpus, make_corpus
from tests.training.test_trainer import assert_same_run, metrics

pytestmark = pytest.mark.slow

SETTINGS = {"epochs": 2, "shuffle_tokens": 200, "processes": 2, "launch": True}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def streamed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    RecordedReplicas.store_dir = corpus.features_dir
    return streamed_corpus(corpus, tmp_path_factory.mktemp("table"))


def test_two_ranks_read_the_stream_and_end_with_the_bits_of_stored_training(
    corpus: Corpus, streamed: Streamed, tmp_path: Path
) -> None:
    pieces = [streamed.plan.piece_of[name] for name in corpus.parts["train"]]
    corpus.train(tmp_path / "stored", train_pieces=pieces, **SETTINGS)
    directory = tmp_path / "stream"
    with streaming(streamed, 2, directory, RecordedReplicas):
        corpus.at(directory).train(
            tmp_path / "streamed",
            feature_store=SOURCE,
            train_pieces=pieces,
            features="streamed",
            **SETTINGS,
        )
    assert_same_run(tmp_path / "stored", tmp_path / "streamed")
    assert metrics(tmp_path / "streamed")[1]["stream_most_held_bytes"] > 0
    assert sorted(path.name for path in directory.iterdir()) == ["manifest.json", "off_policy.json"]


def test_a_cache_that_does_not_fit_the_object_stores_is_refused(
    corpus: Corpus, streamed: Streamed, tmp_path: Path
) -> None:
    cluster = streamed.cluster.model_copy(update={"cache_gb": 0.09})
    large = dataclasses.replace(streamed, cluster=cluster)
    with (
        pytest.raises(OutriderError, match=r"cluster\.cache_gb = 0\.09.*0\.1 GB"),
        streaming(large, 1, tmp_path, RecordedReplicas),
    ):
        pass


def test_a_lost_desk_says_why(streamed: Streamed) -> None:
    import ray

    with open_cluster(streamed.cluster):
        desk, facts = start_desk(1, {"a": 0}, [100], 1000, 0)
        assert desk.marks().held_bytes == 0
        ray.kill(desk._actor)
        with pytest.raises(OutriderError, match=r"captures has ended \(ActorDiedError: .+\)"):
            desk.marks()
        with pytest.raises(OutriderError, match="captures has ended"):
            connect(facts)[0].marks()  # Ray may know the name for a moment
