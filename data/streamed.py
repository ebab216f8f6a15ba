"""Streamed training: capture replicas compute the states while training reads them.

    with stream_features(streamed, ranks=2, directory=run / "training/stream"):
        train(features_dir=directory, training=TrainingConfig(features="streamed"), ...)

Each rank requests from the replicas (replicas.py) the sequences that it reads next, in its own
order, within its share of `cluster.in_flight_gb`. Neither text nor states are written to disk:
states exist only in the replicas, the cluster's object stores and the ranks. The validation and
held-out parts are in the feature store that the capture stage wrote.
"""

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from typing_extensions import TypedDict

from outrider.common.cluster.actors import find_actors
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import value_digest
from outrider.common.json_forms import parse_form, read_form
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import (
    CaptureBatch,
    capture_batch_tokens,
    capture_batches,
    capture_rows,
    sample_rows,
    state_bytes,
)
from outrider.data.features.feature_store import (
    FeatureStore,
    SequenceLength,
    decode_states,
    encode_states,
    round_scores,
)
from outrider.data.features.replica import CaptureReplica, ReplicaSetup
from outrider.data.features.replicas import Replicas, start_replicas
from outrider.data.on_policy.check import MOST_ASIDE
from outrider.data.on_policy.evidence import OnPolicyEvidence
from outrider.data.sequences import load_sequences
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import LoggedRow
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.features import FeatureSpec, SequenceStates, StreamRow

STREAM = "stream.json"
"""File with the names of the replicas and the paths of the sequences."""
CONCLUSIVE = 64
"""Number of judged sequences from which on too many off-policy ones stop the training."""


class StreamFile(TypedDict):
    """The content of `STREAM`."""

    address: str
    """Address of the cluster."""
    namespace: str
    replicas: list[str]
    """Names of the actors."""
    start_timeout_s: float
    limit_bytes: int
    """Bytes of states in flight for each training process."""
    features: list[StreamRow]
    capture: dict[str, object]
    """`CaptureConfig`"""
    tables: Annotated[list[str], Field(min_length=1)]
    limit: int
    """Maximum number of captured tokens per sequence."""
    store: str
    """The feature store of the validation part."""


@dataclass(frozen=True)
class StreamedCapture:
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
def stream_features(
    streamed: StreamedCapture,
    ranks: int,
    directory: Path,
    actor: type[CaptureReplica] = CaptureReplica,
) -> Iterator[None]:
    """Starts the replicas, and writes to `directory` how ranks reach them.

    Raises:
        OutriderError: If there is no cluster, or too little memory for the states in flight.
    """
    cluster = streamed.cluster
    capture = streamed.capture
    table = load_sequences(streamed.tables, streamed.train)
    setup = ReplicaSetup(
        target=streamed.target,
        engine=streamed.engine,
        capture=capture,
        spec=streamed.spec,
        checked=tuple(sample_rows(table, streamed.limit, capture.self_check_sequences)),
        in_memory=True,
        piece_tokens=capture_batch_tokens(table, streamed.limit, capture.batch_tokens),
    )
    # A private cluster is given the cores that it needs, even if the machine has fewer.
    training_cores = ranks * cluster.training_cores
    capture_cores = cluster.capture_replicas * cluster.cores_per_replica
    cores = max(len(os.sched_getaffinity(0)), training_cores + capture_cores)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(open_cluster(cluster, cores))
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
        content: StreamFile = {
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
        write_json(directory / STREAM, content, private=True)
        try:
            yield
        finally:
            (directory / STREAM).unlink()


class StreamedFeatures:
    """Reads the training part during capture, and other parts from a store."""

    def __init__(self, directory: Path, content: StreamFile):
        self.directory = directory
        self.content = content
        self.capture = parse_form(
            CaptureConfig, json.dumps(content["capture"]), directory / STREAM, "rerun the command"
        )
        self.spec = FeatureSpec.from_list(content["features"])
        self.store = FeatureStore.open(Path(content["store"]))
        self.table = load_sequences([Path(path) for path in content["tables"]])
        ids = self.table["sequence_id"][:]
        starts = self.table["completion_start"][:]
        lengths = [min(len(token_ids), content["limit"]) for token_ids in self.table["token_ids"]]
        self.sequences = {
            sequence_id: SequenceLength(sequence_id, length, start)
            for sequence_id, length, start in zip(ids, lengths, starts, strict=True)
        }
        """All sequences by id, as captured."""
        self._row_of = {sequence_id: row for row, sequence_id in enumerate(ids)}
        constraints = zip(ids, self.table["constraint"], self.table["grammar"], strict=True)
        self.not_checked = {
            name for name, constraint, text in constraints if constraint and not text
        }
        """Sequences with a constraint but no grammar, which cannot be checked."""

    @classmethod
    def open(cls, directory: Path) -> "StreamedFeatures":
        """Opens the stream in `directory`."""
        path = Path(directory) / STREAM
        if not path.exists():
            raise OutriderError(f"{directory}: no stream (there is no {STREAM}); rerun the command")
        return cls(Path(directory), read_form(StreamFile, path, "rerun the command"))

    @property
    def digest(self) -> str:
        """Digest of the target and of all sequences."""
        sequences = [asdict(sequence) for sequence in self.sequences.values()]
        return value_digest([self.store.manifest.header.source, sequences])

    def read(self, sequence_id: str) -> SequenceStates:
        """Reads one sequence of the validation part."""
        return self.store.read(sequence_id)

    def tokens(self, sequence_id: str) -> torch.Tensor:
        """[T] the token ids of any sequence, as captured."""
        token_ids = self.table[self._row_of[sequence_id]]["token_ids"]
        return torch.tensor(token_ids[: self.content["limit"]], dtype=torch.int32)

    def start_reading(self, sequence_ids: Sequence[str]) -> "StreamReading":
        """Starts reading these sequences, in this order."""
        rows = [self._row_of[sequence_id] for sequence_id in sequence_ids]
        return StreamReading(self, capture_rows(self.table.select(rows), self.content["limit"]))

    def replicas(self) -> Replicas:
        """Connects this process to the replicas; only rank 0 prints their events."""
        try:
            actors = find_actors(
                self.content["address"], self.content["namespace"], self.content["replicas"]
            )
        except LookupError:
            raise OutriderError(
                "the capture process has ended, and the stream of states with it; rerun the command"
                " to resume"
            ) from None
        console = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
        return Replicas(actors, state_bytes(self.spec), self.content["start_timeout_s"], console)


class StreamReading:
    """Reads one process's sequences in order; two threads may call it."""

    def __init__(self, source: StreamedFeatures, rows: Iterator[LoggedRow]):
        self._capture = source.capture
        self._not_checked = source.not_checked
        self._replicas = source.replicas()
        plan = capture_batches(rows, source.capture.batch_tokens)
        self._pieces = self._replicas.stream(plan, source.content["limit_bytes"])
        self._arrived: deque[tuple[str, SequenceStates]] = deque()
        self._is_off_policy: dict[str, bool] = {}
        # The prefetching thread calls `read`, and the training loop `off_policy`.
        self._lock = threading.Lock()

    def read(self, sequence_id: str) -> SequenceStates:
        """Returns the states of the next sequence; waits for capture."""
        with self._lock:
            while not self._arrived:
                self._take_piece()
            next_id, states = self._arrived.popleft()
        if next_id != sequence_id:
            raise RuntimeError(f"the plan has {next_id} here, not {sequence_id}")
        return states

    def off_policy(self, sequence_ids: Sequence[str]) -> list[bool]:
        """Whether each of these sequences is off-policy; waits for capture."""
        with self._lock:
            while not all(sequence_id in self._is_off_policy for sequence_id in sequence_ids):
                self._take_piece()
        return [self._is_off_policy[sequence_id] for sequence_id in sequence_ids]

    def close(self) -> None:
        """Ends a `read` that is waiting in another thread."""
        self._replicas.stopped = True

    def _take_piece(self) -> None:
        arrived = next(self._pieces, None)
        if arrived is None:
            raise OutriderError("training has stopped reading the stream; rerun the command")
        piece, captured = arrived
        self._judge(piece, captured)
        for row, states in zip(piece.rows, captured, strict=True):
            # As if they had been stored: with `capture.dtype: fp8`, training reads rounded states.
            streams = {
                name: decode_states(encode_states(state_TH, self._capture.dtype))
                for name, state_TH in states.streams.items()
            }
            self._arrived.append((row.row_id, replace(states, streams=streams)))

    def _judge(self, piece: CaptureBatch, captured: Sequence[SequenceStates]) -> None:
        """Decides from the scores which sequences are off-policy."""
        least = self._capture.min_on_policy
        if least is None:
            self._is_off_policy |= dict.fromkeys(piece.row_ids, False)
            return
        unlogged_S = np.full(len(captured), np.nan)  # `own_share` needs no sampling settings
        evidence = OnPolicyEvidence(
            columns=list(COLUMNS),
            sums_SPC=np.array([round_scores(states.scores or ()) for states in captured]),
            temperature_S=unlogged_S,
            top_p_S=unlogged_S,
            retokenized_S=unlogged_S,
        )
        shares = evidence.own_share().tolist()
        for row_id, share in zip(piece.row_ids, shares, strict=True):
            self._is_off_policy[row_id] = share < least and row_id not in self._not_checked
        count = sum(self._is_off_policy.values())
        judged = len(self._is_off_policy.keys() - self._not_checked)
        if judged >= CONCLUSIVE and count > MOST_ASIDE * judged:
            raise OutriderError(
                f"{count:,} of the first {judged:,} sequences of the training part are off-policy"
                " (capture.min_on_policy); docs/explanation/traffic.md describes the causes. To"
                " train on them anyway, lower capture.min_on_policy (null: keep everything)"
            )
