"""Replay in shards against replay in one piece, bit for bit."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.replay import replay as replaying
from outrider.eval.replay.cluster_replay import cluster_replay, shards_of
from outrider.eval.replay.replay import ReplaySums, replay
from tests.eval.replay_case import DEPTH, Store, replay_case
from tests.tiny import HIDDEN


class SizedStore(Store):
    """A feature store in memory that knows sizes."""

    def length(self, name):
        return len(self[name].token_ids)

    def completion_start(self, name):
        return self[name].completion_start


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The case's five responses several times, and one without a step among them."""
    case = replay_case(tmp_path_factory.mktemp("tiny"))
    store, rows = SizedStore(), []
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
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


@pytest.mark.parametrize("batch_tokens", [25, 60, 100])
def test_shards_add_up_to_the_same_sums(case, batch_tokens, monkeypatch):
    monkeypatch.setattr(replaying, "BATCH_TOKENS", batch_tokens)
    whole = replay(case.target, case.target, case.store, case.rows, DEPTH, by_region=True)
    assert len(whole.sequence_ids) == 20
    for count in (2, 3, 7):
        shards = shards_of(case.store, case.rows, count)
        assert 1 < len(shards) <= count
        assert [row["sequence_id"] for shard in shards for row in shard] == whole.sequence_ids
        sums = [
            replay(case.target, case.target, case.store, shard, DEPTH, by_region=True)
            for shard in shards
        ]
        assert_equal(ReplaySums.joined(sums), whole)
    assert shards_of(case.store, [], 5) == []


@pytest.mark.slow
def test_tasks_replay_as_one_process(case, tmp_path, monkeypatch):
    """Tasks on two cores; a batch has 8,192 tokens there, so rows are long enough for several."""
    pytest.importorskip("ray")
    with FeatureWriter(tmp_path / "features", HIDDEN, {}) as writer:
        for name in case.store:
            found = case.store[name]
            writer.write(name, found.token_ids, found.hidden, found.completion_start)
    store = FeatureStore.open(tmp_path / "features")
    rows = case.rows * 50  # 20,000 tokens
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a task of one core
    try:
        whole = replay(case.target, case.target, store, rows, DEPTH, by_region=True)
    finally:
        torch.set_num_threads(threads)
    with open_cluster(ClusterConfig(address="local"), cpus=2):
        sums = cluster_replay(case.target, case.target, store, rows, DEPTH, by_region=True)
        with pytest.raises(OutriderError, match="no sequence has a response of two tokens"):
            cluster_replay(case.target, case.target, store, [], DEPTH)
    assert_equal(sums, whole)
