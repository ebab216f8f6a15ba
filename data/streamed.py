"""Streamed training: capture replicas compute the states while training reads them.

    with streaming(streamed, ranks=2, directory=run / "training/stream"):
        train(features_dir=directory, feature_store=SOURCE, ...)

Each rank requests from the replicas (replicas.py) the sequences that it reads next, in its own
order, within its share of `cluster.in_flight_gb`. Neither text nor states are written to disk:
states exist only in the replicas, the cluster's object stores and the ranks. The validation and
held-out parts are in the feature store that the capture stage wrote. `StreamedFeatures` is a
`training.batches.Stream`.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import connect, open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import pieces, rows_of, sample_of, state_bytes
from outrider.data.features.feature_store import (
    MANIFEST,
    Features,
    FeatureStore,
    decode,
    encode,
    rounded,
)
from outrider.data.features.replica import CapturedRow, CaptureReplica, ReplicaSetup
from outrider.data.on_policy.check import MOST_ASIDE
from outrider.data.on_policy.evidence import Evidence
from outrider.data.sequences import load_sequences
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import LoggedRow
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.features import FINAL_NORM, FeatureSpec

if TYPE_CHECKING:
    from outrider.data.features.replicas import Replicas

SOURCE = "outrider.data.streamed:StreamedFeatures"
"""Value of `feature_store` in a training specification that reads the stream."""
STREAM = "stream.json"
"""File with the names of the replicas and the paths of the sequences."""


@dataclass(frozen=True)
class Streamed:
    """Settings and sequences of streamed capture, and the other parts' feature store."""

    target: TargetConfig
    engine: EngineConfig
    capture: CaptureConfig
    cluster: ClusterConfig
    spec: FeatureSpec
    """Streams of states to capture for each sequence."""
    tables: Sequence[Path]
    train: list[str]
    """Sequences of the training part."""
    limit: int
    """Maximum number of captured tokens per sequence."""
    store: Path
    """The feature store of the validation part."""


@contextlib.contextmanager
def streaming(
    streamed: Streamed, ranks: int, directory: Path, actor: type = CaptureReplica
) -> Iterator[None]:
    """Starts the replicas, and writes to `directory` how ranks reach them.

    Raises:
        OutriderError: If there is no cluster, or too little memory for the states in flight.
    """
    cluster = streamed.cluster
    capture = streamed.capture
    table = load_sequences(streamed.tables, streamed.train)
    longest = max(min(len(token_ids), streamed.limit) for token_ids in table["token_ids"])
    setup = ReplicaSetup(
        target=streamed.target,
        engine=streamed.engine,
        capture=capture,
        spec=streamed.spec,
        checked=tuple(sample_of(table, streamed.limit, capture.self_check_sequences)),
        in_memory=True,
        piece_tokens=max(capture.batch_tokens, longest),
    )
    # A private cluster is given the cores that it needs, even if the machine has fewer.
    needed = ranks * cluster.training_cores + cluster.capture_replicas * cluster.cores_per_replica
    cores = max(len(os.sched_getaffinity(0)), needed)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(open_cluster(cluster, cores))  # raises if Ray is missing
        from outrider.data.features.replicas import start_replicas

        namespace, actors = stack.enter_context(start_replicas(cluster, setup, actor))
        limit_bytes = session.in_flight_bytes(cluster) // ranks
        piece_bytes = setup.piece_tokens * state_bytes(streamed.spec)
        if piece_bytes > limit_bytes:
            raise OutriderError(
                f"cluster.in_flight_gb: the share of each of {ranks} training processes is"
                f" {limit_bytes / 1e9:.3g} GB, but the largest piece of states takes"
                f" {piece_bytes / 1e9:.3g} GB; raise cluster.in_flight_gb (and the object stores),"
                " or lower capture.batch_tokens"
            )
        facts = {
            "address": session.address,
            "namespace": namespace,
            "replicas": list(actors),
            "start_timeout_s": cluster.start_timeout_s,
            "limit_bytes": limit_bytes,
            "features": streamed.spec.as_list(),
            "capture": capture.model_dump(mode="json"),
            "tables": [str(path) for path in streamed.tables],
            "limit": streamed.limit,
            "store": str(streamed.store),
        }
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(directory / STREAM, facts, private=True)
        try:
            yield
        finally:
            (directory / STREAM).unlink()


class StreamedFeatures:
    """Reads the training part during capture, and other parts from a store."""

    def __init__(self, directory: Path, facts: dict[str, Any]):
        self.directory, self.facts = directory, facts
        self.capture = CaptureConfig.model_validate(facts["capture"])
        self.spec = FeatureSpec.from_list(facts["features"])
        self.store = FeatureStore.open(Path(facts["store"]))
        self.table = load_sequences([Path(path) for path in facts["tables"]])
        ids = self.table["sequence_id"][:]
        starts = self.table["completion_start"][:]
        self.place = {sequence_id: number for number, sequence_id in enumerate(ids)}
        lengths = (min(len(token_ids), facts["limit"]) for token_ids in self.table["token_ids"])
        self.manifest = {
            "source": read_json(self.store.directory / MANIFEST)["source"],
            "sequences": [
                {"id": sequence_id, "length": length, "completion_start": start}
                for sequence_id, length, start in zip(ids, lengths, starts, strict=True)
            ],
        }

    @classmethod
    def open(cls, directory: Path) -> "StreamedFeatures":
        """Opens the stream in `directory`."""
        if not (Path(directory) / STREAM).exists():
            raise OutriderError(f"{directory}: no stream (there is no {STREAM}); rerun the command")
        return cls(Path(directory), read_json(Path(directory) / STREAM))

    def read(self, sequence_id: str) -> Features:
        """Reads one sequence of the validation part."""
        return self.store.read(sequence_id)

    def tokens(self, sequence_id: str) -> torch.Tensor:
        """[T] the token ids of any sequence, as captured."""
        token_ids = self.table[self.place[sequence_id]]["token_ids"]
        return torch.tensor(token_ids[: self.facts["limit"]], dtype=torch.int32)

    def reading(self, sequence_ids: Sequence[str]) -> "StreamReading":
        """Starts reading these sequences, in this order."""
        places = [self.place[sequence_id] for sequence_id in sequence_ids]
        return StreamReading(self, rows_of(self.table.select(places), self.facts["limit"]))

    def replicas(self) -> "Replicas":
        """Connects this process to the replicas; only rank 0 prints their events."""
        import ray

        from outrider.data.features.replicas import Replicas

        if not ray.is_initialized():
            connect({"address": self.facts["address"]})
        try:
            actors = {
                name: ray.get_actor(name, namespace=self.facts["namespace"])
                for name in self.facts["replicas"]
            }
        except ValueError:
            raise OutriderError(
                "the capture process has ended, and the stream of states with it; rerun the command"
                " to resume"
            ) from None
        console = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
        return Replicas(actors, state_bytes(self.spec), self.facts["start_timeout_s"], console)


class StreamReading:
    """Reads one process's sequences in order; two threads may call it."""

    def __init__(self, source: StreamedFeatures, rows: Iterator[LoggedRow]):
        self._source = source
        self._replicas = source.replicas()
        plan = pieces(rows, source.capture.batch_tokens)
        self._pieces = self._replicas.stream(plan, source.facts["limit_bytes"])
        self._arrived: deque[tuple[str, Features]] = deque()
        self._off: dict[str, bool] = {}
        self._lock = threading.Lock()

    def read(self, sequence_id: str) -> Features:
        """Returns the states of the next sequence; waits for capture."""
        with self._lock:
            while not self._arrived:
                self._take_piece()
            name, features = self._arrived.popleft()
        if name != sequence_id:
            raise RuntimeError(f"the plan has {name} here, not {sequence_id}")
        return features

    def off_policy(self, sequence_ids: Sequence[str]) -> list[bool]:
        """Whether each of these sequences is off-policy; waits for capture."""
        with self._lock:
            while not all(sequence_id in self._off for sequence_id in sequence_ids):
                self._take_piece()
        return [self._off[sequence_id] for sequence_id in sequence_ids]

    def close(self) -> None:
        """Ends a `read` that is waiting in another thread."""
        self._replicas.stopped = True

    def _take_piece(self) -> None:
        taken = next(self._pieces, None)
        if taken is None:
            raise OutriderError("training has stopped reading the stream; rerun the command")
        piece, rows = taken
        self._judge(rows)
        for logged, row in zip(piece.rows, rows, strict=True):
            dtype = self._source.capture.dtype
            states = {
                name: state_TH if dtype == "bf16" else decode(encode(state_TH, dtype))
                for name, state_TH in row.states.items()
            }
            token_ids = torch.tensor(logged.token_ids, dtype=torch.int32)
            found = Features(token_ids, states.pop(FINAL_NORM), logged.completion_start, states)
            self._arrived.append((row.row_id, found))

    def _judge(self, rows: Sequence[CapturedRow]) -> None:
        """Decides from the scores which sequences are off-policy."""
        least = self._source.capture.min_on_policy
        if least is None:
            self._off |= {row.row_id: False for row in rows}
            return
        scores = np.array([rounded(row.scores or ()) for row in rows])
        unlogged_S = np.full(len(rows), np.nan)  # `own_share` needs no sampling settings
        evidence = Evidence(
            columns=list(COLUMNS),
            sums_SPC=scores,
            temperature_S=unlogged_S,
            top_p_S=unlogged_S,
            retokenized_S=unlogged_S,
        )
        shares = evidence.own_share().tolist()
        self._off |= {row.row_id: share < least for row, share in zip(rows, shares, strict=True)}
        count = sum(self._off.values())
        judged = len(self._off)
        if judged >= 64 and count > MOST_ASIDE * judged:  # fewer are not conclusive
            raise OutriderError(
                f"{count:,} of the first {judged:,} sequences of the training part are off-policy"
                " (capture.min_on_policy); docs/explanation/traffic.md describes the causes. To"
                " train on them anyway, lower capture.min_on_policy (null: keep everything)"
            )
