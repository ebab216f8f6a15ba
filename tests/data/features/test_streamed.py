"""Streamed training from replicas on several nodes, one of which dies.

The replicas replay a store (no engines), on raylets of this machine with their own object stores.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.config import CaptureConfig
from outrider.data.features.feature_store import FeatureStore
from outrider.data.streamed import STREAM, StreamedCapture, stream_features
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.features import SequenceStates
from tests.cluster_nodes import local_nodes
from tests.training.corpus import make_corpus
from tests.training.stores import recorded, write_stream
from tests.training.test_trainer import assert_same_run, losses, once_at_step

pytestmark = pytest.mark.slow


class ReplayedReplica:
    """As `CaptureReplica`; the store is next to the target's directory."""

    def __init__(self, setup: Any) -> None:
        self.store = FeatureStore.open(Path(setup.target.model).parent / "features")

    def start(self) -> dict[str, Any]:
        return {"host": "here", "start_s": 0.0}

    def capture(self, piece: Any) -> list[SequenceStates]:
        time.sleep(0.05)
        return [recorded(self.store, name, off_policy=()) for name in piece.row_ids]


def test_training_ends_with_the_same_bits_when_a_capture_node_dies(tmp_path: Path) -> None:
    """Pieces that wait to be read are lost with the node's object store."""
    corpus = make_corpus(tmp_path / "corpus", train_sequences=36)
    settings = {"epochs": 3, "launch": True}
    corpus.train(tmp_path / "stored", **settings)
    tables = [Path(read_json(write_stream(corpus.features_dir, tmp_path) / STREAM)["tables"][0])]
    store = FeatureStore.open(corpus.features_dir)
    with local_nodes() as nodes:
        first = nodes.add()
        _ = nodes.add()
        cluster = ClusterConfig(
            address=nodes.address, capture_replicas=2, cores_per_replica=1, in_flight_gb=1e-5
        )
        streamed = StreamedCapture(
            target=TargetConfig(model=str(corpus.target_dir)),
            engine=EngineConfig(),
            capture=CaptureConfig(batch_tokens=120),
            cluster=cluster,
            spec=store.spec,
            tables=tables,
            train=corpus.parts["train"],
            limit=2047,
            store=corpus.features_dir,
        )
        with (
            pytest.raises(OutriderError, match=r"in_flight_gb: the share of each of 1 training"),
            stream_features(streamed, 1, tmp_path / "stream", ReplayedReplica),
        ):
            pass
        cluster = cluster.model_copy(update={"in_flight_gb": 1e-4})
        streamed = dataclasses.replace(streamed, cluster=cluster)
        with (
            stream_features(streamed, 1, tmp_path / "stream", ReplayedReplica),
            once_at_step(tmp_path / "streamed", 3, lambda: nodes.kill(first)),
        ):
            corpus.at(tmp_path / "stream").train(
                tmp_path / "streamed", features="streamed", **settings
            )
    assert len(losses(tmp_path / "streamed")) > 10
    assert_same_run(tmp_path / "stored", tmp_path / "streamed")
