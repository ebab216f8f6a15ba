"""The formula of --dry-run against capture on a private cluster of this machine.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.cluster_prediction [--run runs/resume_screening] [--sequences 400]

For each number of replicas, a run of a quarter of the sequences gives the rate of a replica, from
its second half, and the time of the start. The formula (pipeline/plan/cluster_schedule.py) then
predicts the wall time of larger runs, from the start of Ray to the whole store: with the machine's
disk, and with a slower one. Replicas share the cores; each has an engine.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outrider.common.cluster.config import ClusterConfig
from outrider.common.files import read_json
from outrider.data.config import CaptureConfig, bytes_per_token
from outrider.data.features.capture import capture
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.sequences import load_sequences
from outrider.pipeline.plan.cluster_schedule import ClusterPlan
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import batches

write_private, write_row = FeatureWriter._write_private, FeatureWriter.write


def slow_disk(bytes_per_s: float) -> None:
    """Makes a shard take as long to write as such a disk would."""

    def write(path: Path, content: bytes) -> None:
        began = time.monotonic()
        write_private(path, content)
        time.sleep(max(len(content) / bytes_per_s - (time.monotonic() - began), 0))

    FeatureWriter._write_private = staticmethod(write)  # type: ignore[method-assign]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One capture; times from the start of Ray."""

    wall_s: float
    written_s: list[float]
    """When each sequence is written."""
    starts_s: list[float]
    """How long each replica took to be ready."""
    peak_bytes: int
    """Most bytes in flight."""


def captured(
    ids: list[str], sequences: Path, settings: CaptureConfig, cluster: ClusterConfig
) -> Measured:
    """Captures the sequences on the cluster into a folder that is deleted."""
    written: list[float] = []

    def write(self: FeatureWriter, *row: Any, **more: Any) -> None:
        write_row(self, *row, **more)
        written.append(time.monotonic())

    FeatureWriter.write = write  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            found: dict[str, Any] = capture(
                TargetConfig(),
                sequences,
                {"train": ids},
                settings,
                EngineConfig(max_model_len=2048, kv_cache_gb=0.25),
                Path(folder) / "features",
                cluster=cluster,
            )
            wall_s = time.monotonic() - began
    finally:
        FeatureWriter.write = write_row  # type: ignore[method-assign]
    starts = [checks["start_s"] for checks in found["replicas"].values()]
    written_s = [moment - began for moment in written]
    return Measured(wall_s, written_s, starts, found["cluster"]["peak_bytes"])


def pieces_of(lengths: list[int], most: int) -> list[list[int]]:
    """Lengths by piece of the plan: consecutive sequences up to `most` tokens."""
    rows = (("", range(length), 0) for length in lengths)
    return [[len(span) for _, span, _ in batch] for batch in batches(rows, most)]


def plan_of(
    small: Measured, pieces: list[list[int]], tokens: int, replicas: int, each: float
) -> ClusterPlan:
    """Capture of `tokens` tokens at the rate of a small run's second half, when all replicas work.

    `pieces`: the small run's.
    """
    ends = [small.written_s[count - 1] for count in itertools.accumulate(map(len, pieces))]
    half = len(pieces) // 2
    rate = sum(map(sum, pieces[half:])) / (ends[-1] - ends[half - 1]) / replicas
    first_ready = small.written_s[0] - sum(pieces[0]) / rate
    return ClusterPlan(
        replicas=replicas,
        streamed=False,
        trained_tokens=tokens,
        other_tokens=0,
        epochs=1,
        piece_tokens=round(statistics.mean(map(sum, pieces))),
        window_tokens=0,
        capture_tokens_per_s=rate,
        training_tokens_per_s=1,
        bytes_per_token=each,
        stored_bytes_per_token=each,
        replica_start_s=first_ready + statistics.mean(small.starts_s) - min(small.starts_s),
    )


def main() -> None:
    """Prints predicted and measured times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run whose split is done"
    )
    parser.add_argument("--sequences", type=int, default=400)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--in-flight-mb", type=float, default=20)
    parser.add_argument(
        "--disk", type=float, default=0.5, help="rate of the slow one, of capture's"
    )
    args = parser.parse_args()
    settings = CaptureConfig(batch_tokens=args.batch_tokens, shard_megabytes=1, tokens_per_s=None)
    sequences = args.run / "traffic" / "sequences"
    ids = read_json(args.run / "split" / "parts.json")["train"][: args.sequences]
    table = load_sequences(sequences, ids)
    lengths = [min(len(token_ids), 2047) for token_ids in table["token_ids"]]
    hidden = read_json(TargetConfig().directory() / "config.json")["hidden_size"]
    each = bytes_per_token(hidden, "bf16")
    print("| replicas | disk | predicted, s | measured, s | difference | peak in flight, MB |")
    print("|---|---|---|---|---|---|")
    for replicas in args.replicas:
        cluster = ClusterConfig(
            address="local",
            capture_replicas=replicas,
            object_store_gb=0.1,
            in_flight_gb=args.in_flight_mb / 1000,
        )
        part = len(ids) // 4
        small = captured(ids[:part], sequences, settings, cluster)
        pieces = pieces_of(lengths[:part], args.batch_tokens)
        plan = plan_of(small, pieces, sum(lengths), replicas, each)
        together = plan.capture_tokens_per_s * replicas
        stop_s = small.wall_s - small.written_s[-1]
        facts = {"starts_s": small.starts_s, "start_s": plan.replica_start_s}
        print(json.dumps(facts | {"tokens_per_s": together, "stop_s": stop_s}), file=sys.stderr)
        slow = args.disk * each * together
        for name, disk in (("this machine's", None), (f"{slow / 1e6:.1f} MB/s", slow)):
            if disk is not None:
                slow_disk(disk)
                plan = dataclasses.replace(plan, write_bytes_per_s=disk)
            predicted_s = plan.times().capture_s + stop_s
            found = captured(ids, sequences, settings, cluster)
            FeatureWriter._write_private = staticmethod(write_private)  # type: ignore
            difference = predicted_s / found.wall_s - 1
            print(
                f"| {replicas} | {name} | {predicted_s:.1f} | {found.wall_s:.1f} |"
                f" {difference:+.1%} | {found.peak_bytes / 1e6:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
