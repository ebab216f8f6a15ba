"""Replay as tasks against replay in one piece."""

from dataclasses import fields

import numpy as np
import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.replay.heldout_replay import cluster_replay
from outrider.eval.replay.replay import ReplaySums, replay
from tests.eval.replay_case import DEPTH, Store, replay_case
from tests.tiny import HIDDEN


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The case's five responses several times, and one without a step among them."""
    case = replay_case(tmp_path_factory.mktemp("tiny"))
    store, rows = Store(), []
    for copy in range(4):
        for row in case.rows:
            name = f"{copy}-{row['sequence_id']}"
            store[name] = case.store[row["sequence_id"]]
            rows.append({**row, "sequence_id": name})
    case.store, case.rows = store, rows
    return case


def assert_equal(one: ReplaySums, other: ReplaySums) -> None:
    for field in fields(ReplaySums):
        a, b = getattr(one, field.name), getattr(other, field.name)
        alike = np.allclose(a, b, atol=1e-4) if isinstance(a, np.ndarray) else a == b
        assert alike, field.name


@pytest.mark.slow
def test_tasks_replay_as_one_process(case, tmp_path):
    """Tasks on two cores; a batch has 8,192 tokens there, so rows are long enough for several."""
    pytest.importorskip("ray")
    with FeatureWriter(tmp_path / "features", HIDDEN, {}) as writer:
        for name in case.store:
            found = case.store[name]
            writer.write(name, found.token_ids, found.hidden, found.completion_start)
    store = FeatureStore.open(tmp_path / "features")
    rows = case.rows * 50  # 20,000 tokens
    shared = {
        "speculator": case.target,
        "target_dir": case.target,
        "feature_store": store,
        "depth": DEPTH,
        "by_region": True,
    }
    whole = replay(rows=rows, **shared)
    with open_cluster(ClusterConfig(address="local"), cpus=2):
        sums = cluster_replay(shared, rows)
        with pytest.raises(OutriderError, match="no sequence has a response of two tokens"):
            cluster_replay(shared, [])
    assert_equal(sums, whole)
