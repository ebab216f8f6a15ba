import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.features.join_stores import join_stores
from tests.data.features.test_feature_store import HIDDEN, fill_with_scores, sequence


def write(directory, name, indices, hidden=HIDDEN):
    with FeatureWriter(directory, hidden, {"of": name}, 300 / 2**20) as writer:
        for index in indices:
            token_ids, states, start = sequence(index)
            writer.write(f"{name}-{index}", token_ids, states[:, :hidden], start)


def test_the_wanted_sequences_of_each_store_are_read_back_from_links(tmp_path):
    write(tmp_path / "a", "a", range(20))
    write(tmp_path / "b", "b", range(20, 30))
    wanted = ["b-29", "a-0", "a-17", "b-20"]
    join_stores([tmp_path / "a", tmp_path / "b"], wanted, tmp_path / "joined")
    store = FeatureStore.open(tmp_path / "joined")
    assert sorted(store.sequence_ids) == sorted(wanted)
    for name in wanted:
        token_ids, hidden, start = sequence(int(name[2:]))
        found = store.read(name)
        assert torch.equal(found.token_ids, token_ids) and torch.equal(found.hidden, hidden)
        assert found.completion_start == start
    store.verify()
    shards = list((tmp_path / "joined").glob("shard-*"))
    assert len(shards) < len(list(tmp_path.glob("[ab]/shard-*")))  # only those that are needed
    assert all(path.stat().st_nlink == 2 for path in shards)
    assert (tmp_path / "joined").stat().st_mode & 0o077 == 0


def test_stores_of_another_form_and_missing_sequences_are_refused(tmp_path):
    write(tmp_path / "a", "a", range(3))
    write(tmp_path / "narrow", "n", range(3), hidden=4)
    with pytest.raises(OutriderError, match=r"narrow/manifest.json: hidden_size differs"):
        join_stores([tmp_path / "a", tmp_path / "narrow"], ["a-0"], tmp_path / "joined")
    with pytest.raises(OutriderError, match=r"no states of 1 sequences \(first a-9\)"):
        join_stores([tmp_path / "a"], ["a-0", "a-9"], tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_scores_stay_with_their_sequences(tmp_path):
    fill_with_scores(tmp_path / "a", range(20))
    join_stores([tmp_path / "a"], ["0-18", "0-3"], tmp_path / "joined")
    whole, joined = FeatureStore.open(tmp_path / "a"), FeatureStore.open(tmp_path / "joined")
    for name in ("0-18", "0-3"):
        assert joined.scores(name) == whole.scores(name)
