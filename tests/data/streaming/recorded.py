"""Capture replicas that replay a feature store through Ray's object store."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from datasets import Dataset

from outrider.common.cluster.config import ClusterConfig
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import Piece
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.piece_stream import CapturedPiece
from outrider.data.features.replica import PieceFacts, StoredRow
from outrider.data.streaming.piece_plan import PiecePlan
from outrider.data.streaming.stream import Streamed
from outrider.serving.config import EngineConfig, TargetConfig
from tests.training.corpus import Corpus

BATCH_TOKENS = 120
"""Of a piece: about four sequences of the corpus."""


class RecordedReplicas:
    """A context manager like `Replicas`; `store_dir` is set by the test."""

    store_dir: Path
    seconds_per_piece = 0.0

    def __init__(self, *_: object) -> None:
        self.store = FeatureStore.open(self.store_dir)

    def __enter__(self) -> "RecordedReplicas":
        return self

    def __exit__(self, *_: object) -> None:
        return

    @contextmanager
    def references(self, plan: Iterable[Piece], limit_bytes: int) -> Iterator[SimpleNamespace]:
        pieces = self.captured(plan)
        yield SimpleNamespace(take=lambda: next(pieces, None))

    def captured(self, plan: Iterable[Piece]) -> Iterator[CapturedPiece]:
        import ray

        for place, piece in enumerate(plan):
            time.sleep(self.seconds_per_piece)
            rows = [
                StoredRow(name, {"final_norm": self.bits(name)}, None) for name in piece.row_ids
            ]
            facts = PieceFacts(piece.index, piece.tokens, 0.0)
            yield CapturedPiece(place, piece, ray.put(rows), facts)

    def bits(self, name: str) -> "object":
        return self.store.read(name).hidden.view(torch.int16).numpy()


def streamed_corpus(corpus: Corpus, folder: Path, **cluster: object) -> Streamed:
    """What `streaming` needs for a corpus, with its table in `folder`."""
    store = FeatureStore.open(corpus.features_dir)
    rows = [
        {
            "sequence_id": name,
            "token_ids": store.tokens(name).tolist(),
            "completion_start": store.read(name).completion_start,
            "temperature": 0.6,
            "top_p": 0.95,
        }
        for name in store.sequence_ids
    ]
    table = Dataset.from_list(rows)
    table.save_to_disk(str(folder / "sequences"))
    return Streamed(
        target=TargetConfig(model=str(corpus.target_dir)),
        engine=EngineConfig(),
        capture=CaptureConfig(min_on_policy=None, batch_tokens=BATCH_TOKENS),
        cluster=ClusterConfig(address="local", object_store_gb=0.1, in_flight_gb=0.001, **cluster),
        spec=store.spec,
        plan=PiecePlan(table, 2047, BATCH_TOKENS),
        tables=folder / "sequences",
        store=corpus.features_dir,
    )
