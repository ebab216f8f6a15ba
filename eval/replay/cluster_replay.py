"""Exact replay as Ray tasks, each over some of the sequences.

    sums = cluster_replay(speculator, target_dir, store, rows, depth=4, ...)

Shards end where a batch of the single process ends, so every batch has the same responses and the
sums are the same. A task loads the speculator and reads its states from the feature store: the run
directory, target and speculator are at the same paths on all nodes. Ray must be connected
(common/cluster/session.py).
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outrider.common.cluster.tasks import run_tasks, slots
from outrider.eval.replay.replay import (
    ReplaySums,
    StatesByToken,
    begins_a_batch,
    has_steps,
    replay,
)

Row = Mapping[str, Any]


class MeasuredStates(StatesByToken, Protocol):
    """States whose sizes are known without reading them: data's feature store."""

    def length(self, sequence_id: str) -> int:
        """Tokens of a sequence."""

    def completion_start(self, sequence_id: str) -> int:
        """Index of the first token that the target produced."""


def cluster_replay(
    speculator: Path | str,
    target_dir: Path,
    feature_store: MeasuredStates,
    rows: Sequence[Row],
    depth: int,
    draft_sample_method: str = "greedy",
    dtype: str = "float32",
    by_region: bool = False,
    cpus: float = 1.0,
) -> ReplaySums:
    """`replay` of all rows, a shard for each task that the cluster runs at a time.

    A task has one GPU where the cluster has some, else `cpus` cores.
    """
    import ray

    gpus = 1.0 if ray.cluster_resources().get("GPU", 0.0) >= 1 else 0.0
    shared: dict[str, Any] = {
        "speculator": speculator,
        "target_dir": target_dir,
        "feature_store": feature_store,
        "depth": depth,
        "draft_sample_method": draft_sample_method,
        "dtype": dtype,
        "by_region": by_region,
    }
    shards = shards_of(feature_store, rows, slots(cpus, gpus))
    if not shards:
        return replay(rows=rows, **shared)  # which raises that there is nothing to replay
    with contextlib.closing(
        run_tasks(_replay_shard, shards, shared, "exact replay", cpus, gpus)
    ) as ended:
        sums = dict(ended)
    return ReplaySums.joined([sums[number] for number in range(len(shards))])


def shards_of(store: MeasuredStates, rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """The rows with steps in at most `count` runs of whole batches, about as many in each."""

    def length(row: Row) -> int:
        return store.length(row["sequence_id"])

    kept = [
        row for row in rows if has_steps(length(row), store.completion_start(row["sequence_id"]))
    ]
    firsts, tokens = [0] if kept else [], 0
    for number, row in enumerate(kept):
        if begins_a_batch(tokens, length(row)):
            firsts.append(number)
            tokens = 0
        tokens += length(row)
    starts = [int(batches[0]) for batches in np.array_split(firsts, count) if len(batches)]
    return [kept[start:end] for start, end in itertools.pairwise([*starts, len(kept)])]


def _replay_shard(shared: Mapping[str, Any], rows: Sequence[Row]) -> ReplaySums:
    return replay(rows=rows, **shared)
