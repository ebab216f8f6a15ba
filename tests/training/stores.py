"""Feature stores that fail in rank 1 or that stream, for `feature_store` in a training spec."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
from outrider.data.features.feature_store import Features, FeatureStore
from outrider.data.streaming.desk import Desk
from outrider.data.streaming.feed import Feed
from outrider.data.streaming.source import StreamedFeatures
from outrider.serving.engine import LoggedRow


class MistakeInRank1(FeatureStore):
    """Rank 1 raises a user's mistake at the first row; rank 0 is busy for ten minutes."""

    def read(self, sequence_id: str) -> Features:
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

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            raise RuntimeError("a kernel failed")
        return super().read(sequence_id)


class KilledInRank1(FeatureStore):
    """Rank 1 is killed without a message, as by the out-of-memory killer."""

    reads = 0

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            os.kill(os.getpid(), 9)
        return super().read(sequence_id)


PIECE_ROWS = 4
"""Sequences of a piece of the recorded streams."""
OFF_POLICY = ("s03", "s08")
"""Sequences that a recorded stream judges off-policy."""


def recorded_pieces(store: FeatureStore) -> dict[str, int]:
    """The piece of every sequence of a store."""
    return {name: number // PIECE_ROWS for number, name in enumerate(store.sequence_ids)}


class RecordedReplicas:
    """Replays a store as capture replicas do; counts what it captures."""

    def __init__(self, store: FeatureStore) -> None:
        self.store, self.captured = store, 0

    @contextmanager
    def references(self, plan: Iterable[Piece], limit_bytes: int) -> Iterator[SimpleNamespace]:
        pieces = iter(plan)
        yield SimpleNamespace(take=lambda: self.taken(next(pieces)))

    def taken(self, piece: Piece) -> SimpleNamespace:
        self.captured += 1
        rows = []
        for row_id in piece.row_ids:
            hidden_TH = self.store.read(row_id).hidden.view(torch.int16).numpy()
            rows.append(SimpleNamespace(row_id=row_id, states={"final_norm": hidden_TH}))
        return SimpleNamespace(piece=piece, states=rows)


class RecordedStream(StreamedFeatures):
    """A store's states as a stream through a desk in this process, with room for two windows."""

    judged_off: tuple[str, ...] = ()

    @classmethod
    def open(cls, directory: Path) -> "RecordedStream":
        store = FeatureStore.open(directory)
        piece_of = recorded_pieces(store)
        rows: list[list[LoggedRow]] = [[] for _ in range(max(piece_of.values()) + 1)]
        table = []
        for name, piece in piece_of.items():
            token_ids = store.tokens(name).tolist()
            start = store.read(name).completion_start
            rows[piece].append(LoggedRow(name, token_ids, start, 0.6, 0.95))
            table.append({"sequence_id": name, "token_ids": token_ids})
        pieces = [Piece(number, tuple(each)) for number, each in enumerate(rows)]
        each = [piece.nbytes(store.spec) for piece in pieces]
        desk = Desk(
            piece_of, each, 5 * max(each), int(os.environ.get("CACHE_PIECES", 0)) * max(each)
        )
        cls.feed = Feed(
            desk,
            RecordedReplicas(store),
            pieces.__getitem__,
            max(each),
            lambda captured: {name: name in cls.judged_off for name in captured.piece.row_ids},
        )
        cls.feed.__enter__()
        return cls(
            desk, lambda payload: payload[0], Dataset.from_list(table), store.manifest, store
        )


class JudgedStream(RecordedStream):
    """Two sequences are off-policy."""

    judged_off = OFF_POLICY
