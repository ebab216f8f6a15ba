"""Streams the training part: capture replicas feed a desk, and training reads from it.

    with streaming(traffic, capture, engine, target, cluster, features, ranks, directory) as stream:
        train(features_dir=directory, feature_store=SOURCE, ...)

Nothing of the text or the states is written to a disk: states are in the replicas, in the object
stores of the cluster and in the trainer. `directory` gets the address of the desk and the ids and
lengths of the sequences (source.py). The validation and held-out parts are in the feature store
that the capture stage wrote.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import ClusterSession, open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import state_bytes
from outrider.data.features.feature_store import VERSION, rounded
from outrider.data.features.piece_stream import CapturedPiece
from outrider.data.features.replica import ReplicaSetup
from outrider.data.features.replicas import Replicas
from outrider.data.features.state_dtype import STORED_AS
from outrider.data.on_policy.evidence import Evidence
from outrider.data.sequences import Tables
from outrider.data.streaming.feed import CapturesPieces, Feed
from outrider.data.streaming.piece_plan import PiecePlan
from outrider.data.streaming.remote_desk import start_desk
from outrider.data.streaming.source import MANIFEST, STREAM
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.token_scores import COLUMNS
from outrider.serving.vllm_hooks.version import runs_on_cpu
from outrider.speculators.features import FeatureSpec

SOURCE = "outrider.data.streaming.source:StreamedFeatures"
"""`feature_store` of a training specification that reads the stream."""
OFF_POLICY = "off_policy.json"
"""The off-policy sequences that were found while training."""
MOST_OF_STORES = 0.8
"""Share of all object stores that states in flight and kept ones may take together."""
PIECES_PER_REPLICA = 3
"""Pieces of a replica that are not with the desk yet: in the engine, being copied, waiting."""


@dataclass(frozen=True)
class Streamed:
    """What is captured while training runs, and where the rest is."""

    target: TargetConfig
    engine: EngineConfig
    capture: CaptureConfig
    cluster: ClusterConfig
    spec: FeatureSpec
    """Streams of each sequence."""
    plan: PiecePlan
    tables: Tables
    store: Path
    """The feature store of the validation part."""


@contextlib.contextmanager
def streaming(
    streamed: Streamed,
    ranks: int,
    directory: Path,
    replicas_of: Callable[..., AbstractContextManager[CapturesPieces]] = Replicas,
) -> Iterator[Feed]:
    """Starts the replicas and the desk, and leaves their address in `directory`.

    `replicas_of` makes what captures, from the arguments of `Replicas`.

    Raises:
        OutriderError: no cluster, or too little memory for what has to be in flight.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    plan = streamed.plan
    each = state_bytes(streamed.spec)
    piece_bytes = [tokens * each for tokens in plan.tokens]
    with _opened(streamed.cluster, ranks) as (session, cluster):
        for_replicas, for_desk = _limits(session, cluster, max(piece_bytes))
        cache = int(cluster.cache_gb * 1e9)
        desk, facts = start_desk(ranks, plan.piece_of, piece_bytes, for_desk, cache)
        write_json(directory / MANIFEST, _manifest(streamed), private=True)
        tables = streamed.tables
        paths = [tables] if isinstance(tables, str | Path) else tables
        where = {"tables": [str(path) for path in paths], "store": str(streamed.store)}
        write_json(directory / STREAM, facts | where, private=True)
        judge = _Judge(streamed.capture.min_on_policy)
        try:
            with (
                replicas_of(session, cluster, _setup(streamed), max(plan.tokens)) as replicas,
                Feed(desk, replicas, plan.piece, for_replicas, judge) as feed,
            ):
                yield feed
        finally:
            (directory / STREAM).unlink()
            _add_off_policy(directory / OFF_POLICY, judge.off)


@contextlib.contextmanager
def _opened(cluster: ClusterConfig, ranks: int) -> Iterator[tuple[ClusterSession, ClusterConfig]]:
    """The cluster, and its section with cores left for the ranks where engines run on cores."""
    for_ranks, replicas = ranks * cluster.training_cores, cluster.capture_replicas
    total = None
    if cluster.address == "local":
        available = len(os.sched_getaffinity(0))
        total = max(available, for_ranks + replicas * (cluster.cores_per_replica or 1))
    with open_cluster(cluster, total) as session:
        if cluster.cores_per_replica is None and runs_on_cpu():
            nodes = session.nodes()
            free = int(min(node.cpus for node in nodes)) - for_ranks
            each = max(free // -(-replicas // len(nodes)), 1)
            cluster = cluster.model_copy(update={"cores_per_replica": each})
        yield session, cluster


def _limits(session: ClusterSession, cluster: ClusterConfig, piece: int) -> tuple[int, int]:
    """Bytes in flight up to the desk, and held by it."""
    limit = session.in_flight_bytes(cluster)
    for_replicas = min(PIECES_PER_REPLICA * cluster.capture_replicas * piece, limit // 2)
    if for_replicas < piece:
        raise OutriderError(
            f"cluster.in_flight_gb: {limit / 1e9:.3g} GB, and a piece of states has"
            f" {piece / 1e9:.3g} GB; raise cluster.in_flight_gb (and the object stores) to at least"
            " four pieces, or lower capture.batch_tokens"
        )
    stores = sum(node.object_store_bytes for node in session.nodes())
    if cluster.cache_gb and limit + cluster.cache_gb * 1e9 > MOST_OF_STORES * stores:
        raise OutriderError(
            f"cluster.cache_gb = {cluster.cache_gb:g}: with {limit / 1e9:.3g} GB in flight"
            f" (cluster.in_flight_gb) it exceeds {MOST_OF_STORES:.0%} of the cluster's object"
            f" stores, {stores / 1e9:.3g} GB; lower one of the two, or give Ray larger stores"
            " (cluster.object_store_gb for address: local)"
        )
    return for_replicas, limit - for_replicas


def _setup(streamed: Streamed) -> ReplicaSetup:
    plan, count = streamed.plan, streamed.capture.self_check_sequences
    sample = np.linspace(0, len(plan.ids) - 1, min(count, len(plan.ids)), dtype=int)
    checked = tuple(
        (row["sequence_id"], row["token_ids"][: plan.limit], row["completion_start"])
        for row in plan.table.select(sample)
    )
    return ReplicaSetup(
        streamed.target,
        streamed.engine,
        streamed.capture,
        streamed.spec,
        checked,
        in_memory=True,
    )


def _manifest(streamed: Streamed) -> dict[str, Any]:
    """As a feature store's manifest, of all sequences of the plan and without shards."""
    plan = streamed.plan
    rows = zip(plan.ids, plan.lengths, plan.starts, strict=True)
    source = read_json(streamed.store / MANIFEST)["source"]
    return {
        "version": VERSION,
        "features": streamed.spec.as_list(),
        "dtype": STORED_AS[streamed.capture.dtype],
        "source": source,
        "sequences": [
            {"id": sequence_id, "length": length, "completion_start": start}
            for sequence_id, length, start in rows
        ],
    }


def _add_off_policy(path: Path, found: Mapping[str, float]) -> None:
    """A run that is resumed sees only the sequences that are still to come."""
    before = read_json(path) if path.exists() else {}
    write_json(path, before | dict(found), private=True)


class _Judge:
    """Decides by their scores which sequences are off-policy."""

    def __init__(self, least: float | None):
        self.least = least
        self.off: dict[str, float] = {}

    def __call__(self, captured: CapturedPiece) -> Mapping[str, bool]:
        ids = captured.piece.row_ids
        if self.least is None:
            return dict.fromkeys(ids, False)
        scores = [rounded(row or ()) for row in captured.facts.scores]
        shares = Evidence.of_scores(COLUMNS, scores).own_share()
        verdicts = {name: bool(share < self.least) for name, share in zip(ids, shares, strict=True)}
        self.off |= {
            name: round(float(share), 4)
            for name, share in zip(ids, shares, strict=True)
            if verdicts[name]
        }
        return verdicts
