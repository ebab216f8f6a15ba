"""Feature stores that fail in rank 1, and streams; store_worker.py has ranks read them."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import CaptureBatch
from outrider.data.features.feature_store import FeatureStore
from outrider.data.streamed import STREAM, StreamedFeatures
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.features import SequenceStates


class MistakeInRank1(FeatureStore):
    """Rank 1 raises a user's mistake at the first row; rank 0 is busy for ten minutes."""

    def read(self, sequence_id: str) -> SequenceStates:
        if os.environ["RANK"] == "1":
            raise OutriderError(
                "features/shard-00003.safetensors: 12 bytes, the manifest says 640 bytes;"
                " capture again"
            )
        time.sleep(600)
        return super().read(sequence_id)


class BugInRank1(FeatureStore):
    """Rank 1 raises an unexpected error in the middle of a step."""

    reads = 0

    def read(self, sequence_id: str) -> SequenceStates:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            self.fail()
        return super().read(sequence_id)

    def fail(self) -> None:
        raise RuntimeError("a kernel failed")


class KilledInRank1(BugInRank1):
    """Rank 1 is killed without a message, as by the out-of-memory killer."""

    def fail(self) -> None:
        os.kill(os.getpid(), 9)


OFF_POLICY = ("s03", "s08")
"""Sequences that a recorded stream judges off-policy."""


def write_stream(features_dir: Path, directory: Path, limit_bytes: int = 2000) -> Path:
    """What `stream_features` leaves for the ranks of a corpus, with its table; returns
    `directory`."""
    store = FeatureStore.open(features_dir)
    rows = [
        {
            "sequence_id": name,
            "token_ids": store.tokens(name).tolist(),
            "completion_start": store.completion_start(name),
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 0,
            "constraint": "",
            "grammar": "",
        }
        for name in store.sequence_ids
    ]
    Dataset.from_list(rows).save_to_disk(str(directory / "sequences"))
    content = {
        "address": "none",
        "namespace": "none",
        "replicas": [],
        "start_timeout_s": 1.0,
        "capture": CaptureConfig(batch_tokens=120).model_dump(mode="json"),
        "features": store.spec.as_list(),
        "limit": 2047,
        "limit_bytes": limit_bytes,
        "store": str(features_dir),
        "tables": [str(directory / "sequences")],
    }
    write_json(directory / STREAM, content)
    return directory


def recorded(store: FeatureStore, name: str, off_policy: tuple[str, ...]) -> SequenceStates:
    """A sequence of a store as a replica captures it, with a score that decides its verdict."""
    scores = dict.fromkeys(COLUMNS, 0.0) | {"tokens": 1.0, "unlikely": float(name in off_policy)}
    return replace(store.read(name), scores=[[*scores.values()]] * 2)


class RecordedStream(StreamedFeatures):
    """A stream that replays the store of its validation part, which has all sequences."""

    recorded_off_policy: tuple[str, ...] = OFF_POLICY

    def replicas(self) -> Any:
        def stream(
            plan: Iterable[CaptureBatch], limit_bytes: int
        ) -> Iterator[tuple[CaptureBatch, list[Any]]]:
            return (
                (
                    piece,
                    [
                        recorded(self.store, name, self.recorded_off_policy)
                        for name in piece.row_ids
                    ],
                )
                for piece in plan
            )

        return SimpleNamespace(stream=stream)


class OnPolicyStream(RecordedStream):
    """The same stream of sequences that are all on-policy."""

    recorded_off_policy = ()
