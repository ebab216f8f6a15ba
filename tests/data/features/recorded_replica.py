"""A capture replica without an engine: the states are a function of the token ids."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.common.errors import OutriderError
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import CaptureBatch, capture_batches, state_bytes
from outrider.data.features.replica import ReplicaSetup
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import LoggedRow
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates

WIDTH = 256
SPEC = FeatureSpec((FeatureStream(FINAL_NORM, WIDTH),))
TOKEN_BYTES = state_bytes(SPEC)
SETUP = ReplicaSetup(
    target=TargetConfig(),
    engine=EngineConfig(),
    capture=CaptureConfig(),
    spec=SPEC,
    checked=(),
    in_memory=True,
    piece_tokens=1000,
)
CANARY = 31337
"""A token id that stands for customer text."""


def plan(count: int, rows: int = 2, tokens: int = 400) -> list[CaptureBatch]:
    """`count` pieces of `rows` rows, each of about `tokens` tokens."""
    made = []
    for index in range(count * rows):
        length = tokens - index % 7
        ids = [CANARY, *range(index, index + length - 1)]
        made.append(
            LoggedRow(
                row_id=f"s{index}", token_ids=ids, completion_start=5, temperature=0.6, top_p=0.95
            )
        )
    planned = list(capture_batches(made, rows * tokens))
    assert len(planned) == count
    return planned


def states_of(token_ids: Any) -> np.ndarray:
    """int16 [T, H]"""
    ids = np.asarray(token_ids, np.int64)[:, None]
    return (np.cumsum(ids, 0) * np.arange(1, WIDTH + 1) % 15000).astype(np.int16)


class RecordedReplica:
    """As `CaptureReplica`; the environment of its node may make it slow or wrong."""

    def __init__(self, setup: ReplicaSetup) -> None:
        self.captured = Path(os.environ.get("RECORDED_CAPTURED", os.devnull))

    def start(self) -> dict[str, Any]:
        """Fails where RECORDED_FAILS is set."""
        if why := os.environ.get("RECORDED_FAILS"):
            raise OutriderError(why)
        return {"host": "here", "start_s": 0.0, "pid": os.getpid()}

    def capture(self, piece: CaptureBatch) -> list[SequenceStates]:
        """The states of a piece; a byte for each is appended to RECORDED_CAPTURED."""
        time.sleep(0.02)
        rows = [
            SequenceStates(
                token_ids=torch.tensor(row.token_ids, dtype=torch.int32),
                completion_start=row.completion_start,
                streams={
                    FINAL_NORM: torch.from_numpy(states_of(row.token_ids)).view(torch.bfloat16)
                },
                scores=[[1.0], [2.0]],
            )
            for row in piece.rows
        ]
        with self.captured.open("ab") as file:
            file.write(b".")
        return rows

    def answer(self, rows: Any) -> list[list[int]]:
        """As many tokens as are asked for."""
        return [[row.token_ids[-1]] * row.max_tokens for row in rows]
