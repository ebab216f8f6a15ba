"""Replay as tasks against replay in one piece."""

import numpy as np
import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.replay.heldout_replay import cluster_replay
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import ARRAYS
from outrider.speculators.features import FeatureSpec
from tests.eval.replay_case import DEPTH, replay_case
from tests.tiny import HIDDEN


@pytest.mark.slow
def test_tasks_replay_as_one_process(tmp_path):
    """Tasks on two cores; a batch has 8,192 tokens there, so rows are long enough for several."""
    pytest.importorskip("ray")
    case = replay_case(tmp_path)
    with FeatureWriter(tmp_path / "features", FeatureSpec(()).stored(HIDDEN), {}) as writer:
        for name in case.store:
            writer.write(name, case.store[name])
    store = FeatureStore.open(tmp_path / "features")
    rows = case.rows * 200  # 20,000 tokens
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
    assert sums.sequence_ids == whole.sequence_ids and sums.regions == whole.regions
    for name in ARRAYS:
        assert np.allclose(getattr(sums, name), getattr(whole, name), atol=1e-4), name
