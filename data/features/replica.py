"""A capture replica: one engine in a Ray actor, captures whole pieces of a plan.

    replica = ray.remote(CaptureReplica).remote(setup)
    checks = ray.get(replica.start.remote(None, piece_tokens=65536))
    facts, states = replica.capture.options(num_returns=2).remote(piece)
    load_states(ray.get(states))        # [CapturedRow(row_id, {stream: [T, H]}, scores)]

The actor has two threads. While one copies the states of a piece into the object store, the other
prefills the next piece: a lock gives the engine to one of them. The states pass from the engine's
worker to the actor through a folder in memory, and are never written to a disk (`in_memory`).
"""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.common.errors import OutriderError
from outrider.common.process_tree import ProcessTree
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import Piece, state_bytes
from outrider.data.features.layer_check import layer_check, norm_and_layers
from outrider.data.features.layer_check import require as require_layers
from outrider.data.features.self_check import Row, require, self_check
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, open_engine
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

MEMORY_FILES = Path("/dev/shm")
PIECES_AT_A_TIME = 2
"""Pieces that a replica has at a time: one in the engine, one being copied."""


@dataclass(frozen=True)
class ReplicaSetup:
    """What a replica needs to start."""

    target: TargetConfig
    engine: EngineConfig
    capture: CaptureConfig
    spec: FeatureSpec
    """Stored streams, the final norm's first."""
    checked: tuple[Row, ...]
    """Rows of the self-check."""
    in_memory: bool
    """Whether states may pass through files in memory only."""


class StoredRow(NamedTuple):
    """One sequence's states as they travel: bfloat16 bits, without a copy."""

    row_id: str
    states: "dict[str, np.ndarray]"
    """int16 [T, H] of each stream"""
    scores: list[list[float]] | None


class CapturedRow(NamedTuple):
    """One captured sequence."""

    row_id: str
    states: "dict[str, torch.Tensor]"
    """bfloat16 [T, H] of each stream, in memory of this process"""
    scores: list[list[float]] | None


@dataclass(frozen=True)
class PieceFacts:
    """What a replica reports about a piece."""

    piece: int
    """Place in the plan."""
    tokens: int
    seconds: float
    """In the engine."""
    scores: tuple[list[list[float]] | None, ...] = ()
    """Of each row, for whoever does not read the states."""


class CaptureReplica:
    """The actor; `ray.remote` makes it one (replicas.py)."""

    def __init__(self, setup: ReplicaSetup) -> None:
        self._setup = setup
        self._opened = contextlib.ExitStack()
        self._lock = threading.Lock()

    def start(self, share: tuple[int, int] | None, piece_tokens: int) -> dict[str, Any]:
        """Opens the engine and checks its states; host, checks and seconds.

        `share`: slot and number of cores of the engine's worker on a CPU; None: as the recipe says.
        `piece_tokens`: of the largest piece.

        Raises:
            OutriderError: a check failed, or there is too little memory for the states.
        """
        setup, began = self._setup, time.monotonic()
        engine = setup.engine
        if share is not None:
            engine = engine.model_copy(update={"cpu_cores": _cores(engine.cpu_cores, *share)})
        if engine.gpus > 1 and "distributed_executor_backend" not in engine.extra_arguments:
            # In a placement group vLLM would choose Ray, and start actors outside of this one.
            extra = engine.extra_arguments | {"distributed_executor_backend": "mp"}
            engine = engine.model_copy(update={"extra_arguments": extra})
        folder = _scratch(3 * piece_tokens * state_bytes(setup.spec), setup.in_memory)
        tree = self._opened.enter_context(ProcessTree(folder=folder))
        os.environ.update(tree.environment)
        target_dir = setup.target.directory()
        self._engine = self._opened.enter_context(open_engine(setup.target, engine, scratch=folder))
        started = time.monotonic() - began
        return {
            "host": socket.gethostname(),
            "start_s": round(started, 1),
            **self._checks(target_dir),
        }

    def _checks(self, target_dir: Path) -> dict[str, Any]:
        setup = self._setup
        check = self_check(self._engine, setup.checked, load_target_ends(target_dir).lm_head_VH)
        require(check, setup.capture)
        checks: dict[str, Any] = {"self_check": check.as_dict(), "in_words": check.describe()}
        if setup.spec.auxiliary:
            of_layers = layer_check(
                self._engine, setup.checked, setup.spec, *norm_and_layers(target_dir)
            )
            require_layers(of_layers)
            checks["layer_check"] = of_layers.as_dict()
        return checks

    def capture(self, piece: Piece) -> tuple[PieceFacts, list[StoredRow]]:
        """Prefills a piece, and returns facts and the states of its rows in order."""
        import torch

        setup = self._setup
        with self._lock:
            began = time.monotonic()
            read = self._engine.prefill_batch(
                piece.rows, setup.spec.names, setup.capture.on_policy_positions
            )
            seconds = time.monotonic() - began
        rows = [
            StoredRow(
                row_id,
                {name: state_TH.view(torch.int16).numpy() for name, state_TH in states.items()},
                scores,
            )
            for row_id, states, scores in read()
        ]
        scores = tuple(row.scores for row in rows)
        return PieceFacts(piece.index, piece.tokens, seconds, scores), rows

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Token ids of the target's answer to each row."""
        with self._lock:
            return self._engine.answer(rows)

    def stop(self) -> None:
        """Ends the engine."""
        self._opened.close()


def load_states(rows: Sequence[StoredRow]) -> list[CapturedRow]:
    """Copies rows out of the object store, which can then free them."""
    import numpy as np
    import torch

    return [
        CapturedRow(
            row.row_id,
            {
                name: torch.from_numpy(np.array(states)).view(torch.bfloat16)
                for name, states in row.states.items()
            },
            row.scores,
        )
        for row in rows
    ]


def _cores(pool: str, slot: int, count: int) -> str:
    """The cores of a slot: `count` of the recipe's, or of those that this process may use."""
    if pool == "auto":
        available = sorted(os.sched_getaffinity(0))
    else:
        available = []
        for part in pool.split(","):
            first, _, last = part.partition("-")
            available += range(int(first), int(last or first) + 1)
    chosen = [available[(slot * count + index) % len(available)] for index in range(count)]
    return ",".join(map(str, dict.fromkeys(chosen)))


def _scratch(needed: int, in_memory: bool) -> Path:
    """A private folder in memory with room for `needed` bytes, else in the temporary folder."""
    free = shutil.disk_usage(MEMORY_FILES).free if os.access(MEMORY_FILES, os.W_OK) else 0
    if free >= needed:
        return Path(tempfile.mkdtemp(prefix="outrider-", dir=MEMORY_FILES))
    if in_memory:
        raise OutriderError(
            f"{socket.gethostname()}: {MEMORY_FILES} has {free / 1e9:.1f} GB free, the states of"
            f" three pieces take {needed / 1e9:.1f} GB and may not be written to a disk; lower"
            " capture.batch_tokens, or give the machine (or the container: --shm-size) more"
        )
    return Path(tempfile.mkdtemp(prefix="outrider-"))
