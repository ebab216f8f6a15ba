"""Capture on a cluster: overhead of Ray with one replica, and memory for growing traffic.

    python benchmarks/cluster.py overhead [--sequences 200] [--repeats 6] [--batch-tokens 8192]
    python benchmarks/cluster.py memory [--sequences 1000 5000 20000] [--in-flight-gb 0.05]

`overhead`: one engine in this process and one in a replica of a private cluster capture the same
sequences of the embedded target's traffic into stores on disk, in turn; the other one is idle. The
ratios are of neighbouring blocks. Both have the same cores.

`memory`: replicas without an engine return states of the embedded target's size as fast as they
can, and the consumer writes a store, which is removed. Peaks are of this process's own memory
(without mapped shared memory), of all object stores, and of bytes in flight as counted.
"""

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.data.config import CaptureConfig, TrafficConfig
from outrider.data.features.capture_plan import Piece, pieces
from outrider.data.features.replica import PieceFacts, ReplicaSetup, StoredRow
from outrider.data.features.replicas import Replicas
from outrider.data.features.write_store import Captured, write_store
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import LoggedRow, open_engine
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream

WIDTH = 192
"""Hidden size of the embedded target."""
SPEC = FeatureSpec((FeatureStream(FINAL_NORM, WIDTH),))
TRAFFIC = Path(__file__).resolve().parents[1] / "recipes/nano_r1/traffic/resume_screening.jsonl.gz"


class FastReplica:
    """A replica without an engine: states of zeros at once."""

    def __init__(self, setup: ReplicaSetup) -> None:
        pass

    def start(self, share: tuple[int, int] | None, piece_tokens: int) -> dict[str, Any]:
        """Nothing to start."""
        return {"host": "this machine", "start_s": 0.0}

    def capture(self, piece: Piece) -> tuple[PieceFacts, list[StoredRow]]:
        """Zeros."""
        rows = [
            StoredRow(
                row.row_id,
                {FINAL_NORM: np.zeros((len(row.token_ids), WIDTH), np.int16)},
                [[0.0] * len(COLUMNS)] * 2,
            )
            for row in piece.rows
        ]
        return PieceFacts(piece.index, piece.tokens, 0.0), rows


def logged_rows(folder: Path, count: int) -> list[LoggedRow]:
    """The first `count` sequences of the embedded target's traffic."""
    target_dir = TargetConfig().directory()
    ingest(target_dir, TrafficConfig(path=str(TRAFFIC)), folder / "traffic")
    names = ["sequence_id", "token_ids", "completion_start", "temperature", "top_p"]
    table = load_sequences(folder / "traffic" / "sequences").select(range(count))
    return [LoggedRow(*(row[name] for name in names)) for row in table]


def on_replicas(replicas: Replicas, in_flight: int, plan: Iterator[Piece]) -> Iterator[Captured]:
    """As capture reads replicas."""
    for piece, rows in replicas.stream(plan, in_flight):
        yield from zip(piece.rows, rows, strict=True)


def overhead(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """tokens/s of both, and the ratios of neighbouring blocks."""
    (folder / "traffic").mkdir()
    rows = logged_rows(folder, args.sequences)
    tokens = sum(len(row.token_ids) for row in rows)
    capture = CaptureConfig(batch_tokens=args.batch_tokens, shard_megabytes=4)
    target, engine = TargetConfig(), EngineConfig(cpu_cores=args.cores)
    cluster = ClusterConfig(address="local", object_store_gb=0.2)
    checked = tuple(row[:3] for row in rows[:4])
    setup = ReplicaSetup(target, engine, capture, SPEC, checked, in_memory=False)
    console = Console(stderr=True)
    piece_tokens = max(piece.tokens for piece in pieces(rows, capture.batch_tokens))
    seconds: dict[str, list[float]] = {"alone": [], "replica": []}
    with (
        open_cluster(cluster, cpus=1) as session,
        Replicas(session, cluster, setup, piece_tokens) as replicas,
        open_engine(target, engine, scratch=folder) as live,
    ):
        replicas.checks()

        def alone(plan: Iterator[Piece]) -> Iterator[Captured]:
            given, sent = itertools.tee(row for piece in plan for row in piece.rows)
            positions = capture.on_policy_positions
            states = live.prefill_logged(sent, SPEC.names, positions, capture.batch_tokens)
            return zip(given, states, strict=True)

        ways: dict[str, Callable[[Iterator[Piece]], Iterator[Captured]]] = {
            "alone": alone,
            "replica": partial(on_replicas, replicas, session.in_flight_bytes(cluster)),
        }
        contents: dict[str, list[bytes]] = {}
        for repeat in range(args.repeats + 1):
            for name, states in ways.items():
                store = folder / f"{name}-{repeat}"
                began = time.monotonic()
                write_store(SPEC, states, rows, tokens, store, {}, capture, console, COLUMNS)
                if repeat:  # the first round warms up
                    seconds[name].append(time.monotonic() - began)
                files = sorted(store.glob("shard-*"))
                contents[name] = [path.read_bytes() for path in files]
                shutil.rmtree(store)
    ratios = [
        alone / replica for alone, replica in zip(seconds["alone"], seconds["replica"], strict=True)
    ]
    return {
        "tokens_a_block": tokens,
        **{
            f"{name}_tokens_per_s": round(tokens / statistics.median(s))
            for name, s in seconds.items()
        },
        "replica_over_alone": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "same_bytes": contents["alone"] == contents["replica"],
    }


class Peaks:
    """Samples this process's own memory and the raylet's shared memory, in a thread.

    Pages of an object store stay the raylet's once they were used: its shared memory is a peak.
    """

    def __init__(self) -> None:
        self.own = self.store = 0
        self._raylet = next(
            process for process in psutil.Process().children() if process.name() == "raylet"
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(0.05):
            memory = process.memory_info()
            self.own = max(self.own, memory.rss - memory.shared)
            self.store = max(self.store, self._raylet.memory_info().shared)


def memory(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Peaks for each number of sequences."""
    capture = CaptureConfig(batch_tokens=args.batch_tokens, shard_megabytes=4)
    cluster = ClusterConfig(
        address="local",
        capture_replicas=2,
        cores_per_replica=1,
        object_store_gb=0.2,
        in_flight_gb=args.in_flight_gb,
    )
    setup = ReplicaSetup(TargetConfig(), EngineConfig(), capture, SPEC, (), in_memory=False)
    console, found = Console(stderr=True), []
    with (
        open_cluster(cluster, cpus=2) as session,
        Replicas(session, cluster, setup, args.batch_tokens, actor=FastReplica) as replicas,
    ):
        states = partial(on_replicas, replicas, session.in_flight_bytes(cluster))
        ids = np.arange(414).tolist()  # the mean of the embedded target's traffic
        for count in args.sequences:
            rows = (LoggedRow(f"s{index}", ids, 5, 0.6, 0.95) for index in range(count))
            store, tokens = folder / str(count), len(ids) * count
            began = time.monotonic()
            with Peaks() as peaks:
                write_store(SPEC, states, rows, tokens, store, {}, capture, console, COLUMNS)
            found.append(
                {
                    "sequences": count,
                    "states_mb": round(tokens * WIDTH * 2 / 1e6),
                    "own_memory_mb": round(peaks.own / 1e6),
                    "object_stores_mb": round(peaks.store / 1e6, 1),
                    "in_flight_mb": round(replicas.watermarks.peak_bytes / 1e6, 1),
                    "tokens_per_s": round(tokens / (time.monotonic() - began)),
                }
            )
            shutil.rmtree(store)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overhead", "memory"])
    parser.add_argument("--sequences", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--cores", default="auto", help="of each engine's worker")
    parser.add_argument("--in-flight-gb", type=float, default=0.05)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "overhead":
            args.sequences = (args.sequences or [200])[0]
            print(json.dumps(overhead(args, Path(folder)), indent=1))
        else:
            args.sequences = args.sequences or [1000, 5000, 20000]
            for line in memory(args, Path(folder)):
                print(json.dumps(line))


if __name__ == "__main__":
    main()
