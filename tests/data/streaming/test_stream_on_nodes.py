"""A stream from replicas on several nodes: a node that dies, a consumer that is slow.

The replicas replay a store (no engines), on raylets of this machine with their own object stores.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.data.features.capture_plan import state_bytes
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.replica import PieceFacts, StoredRow
from outrider.data.features.replicas import Replicas
from outrider.data.streaming.source import StreamedFeatures
from outrider.data.streaming.stream import SOURCE, Streamed, streaming
from outrider.training.packing import make_samples, plan_windows
from outrider.training.plan import Plan
from tests.cluster_nodes import local_nodes
from tests.data.streaming.recorded import streamed_corpus
from tests.training.corpus import Corpus, make_corpus
from tests.training.test_trainer import assert_same_run, losses, once_at_step

pytestmark = pytest.mark.slow


class ReplayedReplica:
    """The actor of a replica, as `CaptureReplica`; the target's directory has the store beside."""

    wait_s = 0.05

    def __init__(self, setup: Any) -> None:
        self.store = FeatureStore.open(Path(setup.target.model).parent / "features")

    def start(self, share: Any, piece_tokens: int) -> dict[str, Any]:
        return {"host": "here", "start_s": 0.0}

    def capture(self, piece: Any) -> tuple[PieceFacts, list[StoredRow]]:
        import torch

        time.sleep(self.wait_s)
        rows = [
            StoredRow(
                name, {"final_norm": self.store.read(name).hidden.view(torch.int16).numpy()}, None
            )
            for name in piece.row_ids
        ]
        return PieceFacts(piece.index, piece.tokens, self.wait_s), rows


def replicas_of(*arguments: Any) -> Replicas:
    return Replicas(*arguments, actor=ReplayedReplica)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"), train_sequences=36)


@pytest.fixture(scope="module")
def streamed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    return streamed_corpus(corpus, tmp_path_factory.mktemp("table"))


def on(streamed: Streamed, address: str, **settings: Any) -> Streamed:
    settings = {"capture_replicas": 2, "cores_per_replica": 1, "in_flight_gb": 0.001} | settings
    return dataclasses.replace(streamed, cluster=ClusterConfig(address=address, **settings))


def test_training_ends_with_the_same_bits_when_a_capture_node_dies(
    corpus: Corpus, streamed: Streamed, tmp_path: Path
) -> None:
    """Its pieces that wait to be read are lost with its object store."""
    pieces = [streamed.plan.piece_of[name] for name in corpus.parts["train"]]
    settings = {"epochs": 3, "shuffle_tokens": 200, "train_pieces": pieces, "launch": True}
    corpus.train(tmp_path / "stored", **settings)
    with local_nodes() as nodes:
        first, _ = nodes.add(), nodes.add()
        found = on(streamed, nodes.address)
        with (
            streaming(found, 1, tmp_path / "stream", replicas_of),
            once_at_step(tmp_path / "streamed", 3, lambda: nodes.kill(first)),
        ):
            corpus.at(tmp_path / "stream").train(
                tmp_path / "streamed", feature_store=SOURCE, features="streamed", **settings
            )
    assert len(losses(tmp_path / "streamed")) > 10
    assert_same_run(tmp_path / "stored", tmp_path / "streamed")


def test_a_slow_consumer_stops_the_replicas_at_the_limit(
    corpus: Corpus, streamed: Streamed, tmp_path: Path
) -> None:
    samples, _ = make_samples(
        zip(streamed.plan.ids, streamed.plan.lengths, streamed.plan.starts, strict=True), 128
    )
    samples = [sample for sample in samples if sample.sequence_id in corpus.parts["train"]]
    numbers = [streamed.plan.piece_of[sample.sequence_id] for sample in samples]
    plan = Plan(plan_windows(samples, numbers, 200, 128, 2, 0, 0), samples, 2)
    piece = max(streamed.plan.tokens) * state_bytes(streamed.spec)
    limit = 12 * piece
    with local_nodes() as nodes:
        nodes.add()
        found = on(streamed, nodes.address, capture_replicas=1, in_flight_gb=limit / 1e9)
        with streaming(found, 1, tmp_path, replicas_of):
            source = StreamedFeatures.open(tmp_path)
            reading = source.reading(source.begin(plan.places(0, ())), plan.mine(0, (), 0, 1))
            waited = []
            for place in plan.mine(0, (), 0, 1):
                time.sleep(0.3)
                reading.read(place.sequence_id)
                waited.append(reading.marks()["stream_capture_waited_s"])
            marks = reading.marks()
            # Three pieces are the replicas' share of the limit, nine the desk's.
            assert 6 * piece < marks["stream_most_held_bytes"] <= 9 * piece
            assert waited[-1] > 1
            assert marks["stream_held_bytes"] == 0
