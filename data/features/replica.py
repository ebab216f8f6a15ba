"""A capture replica: an actor whose engine captures whole pieces.

    with start_actors(CaptureReplica, setup, ["replica 0"], placement) as (_, actors):
        checks = actors["replica 0"].call(CaptureReplica.start).result()
        actors["replica 0"].call(CaptureReplica.capture, piece).result()  # [SequenceStates]

The actor has two threads. While one copies the states of a piece into the object store, the other
prefills the next piece; a lock protects the engine. The states pass from the engine's worker to the
actor through a folder in memory or, if memory is short and `in_memory` is false, on a disk.
"""

import contextlib
import functools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.common.cluster.environment import (
    OF_ENGINES,
    forwarded_variables,
    set_missing_variables,
)
from outrider.common.errors import OutriderError
from outrider.common.process_tree import ProcessTree
from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import CaptureBatch, state_bytes
from outrider.data.features.engine_checks import Row, check_engine
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, Engine, open_engine
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec, SequenceStates

MEMORY_FILES = Path("/dev/shm")
PIECES_AT_A_TIME = 2
"""Pieces that a replica holds at a time: one in the engine, one being copied."""


@dataclass(frozen=True)
class ReplicaSetup:
    """Settings of a replica."""

    target: TargetConfig
    engine: EngineConfig
    capture: CaptureConfig
    spec: FeatureSpec
    """Stored streams, the final norm's first."""
    checked: tuple[Row, ...]
    """Rows for the engine checks."""
    in_memory: bool
    """Whether states must be written only to files in memory, never to a disk."""
    piece_tokens: int
    """Number of tokens in the largest piece."""
    environment: dict[str, str] = field(
        default_factory=functools.partial(forwarded_variables, OF_ENGINES)
    )
    """Variables of the command, for the engine."""


class CaptureReplica:
    """A capture replica; `start_replicas` makes it an actor (replicas.py)."""

    def __init__(self, setup: ReplicaSetup) -> None:
        set_missing_variables(setup.environment)
        self._setup = setup
        self._opened = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._started: dict[str, object] | None = None
        self._failed: Exception | None = None

    def start(self) -> dict[str, object]:
        """Opens and checks the engine once; returns host, start-up time and checks.

        `in_words` summarizes the checks.

        Raises:
            OutriderError: If a check failed, or there is too little memory for the states.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._started is None:
                try:
                    self._started = self._start()
                except Exception as error:
                    self._failed = error  # later callers get the same error
                    self._opened.close()
                    raise
            return self._started

    def _start(self) -> dict[str, object]:
        began = time.monotonic()
        target_dir = self._setup.target.directory()
        self._engine = self._open()
        start_s = round(time.monotonic() - began, 1)
        checks, in_words = check_engine(
            engine=self._engine,
            rows=self._setup.checked,
            spec=self._setup.spec,
            lm_head_VH=load_target_ends(target_dir).lm_head_VH,
            target_dir=target_dir,
        )
        host = socket.gethostname()
        return {"host": host, "start_s": start_s, **checks, "in_words": in_words}

    def _open(self) -> Engine:
        setup = self._setup
        engine = self._setup.engine
        if runs_on_cpu():
            # Keeps the cluster's OMP_NUM_THREADS (the actor's cores); vLLM would use all cores.
            environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", **engine.environment}
            engine = engine.model_copy(update={"environment": environment})
        if engine.gpus > 1 and "distributed_executor_backend" not in engine.extra_arguments:
            # Inside an actor, vLLM might otherwise choose Ray and start other actors.
            extra = engine.extra_arguments | {"distributed_executor_backend": "mp"}
            engine = engine.model_copy(update={"extra_arguments": extra})
        folder = _scratch(3 * setup.piece_tokens * state_bytes(setup.spec), setup.in_memory)
        os.environ.update(self._opened.enter_context(ProcessTree(folder=folder)).environment)
        return self._opened.enter_context(open_engine(setup.target, engine, scratch=folder))

    def capture(self, piece: CaptureBatch) -> list[SequenceStates]:
        """Prefills a piece; returns the states of its rows in order."""
        self.start()
        with self._lock:
            read = self._engine.prefill_batch(
                piece.rows, self._setup.spec.names, self._setup.capture.on_policy_positions
            )
        # Without the lock: the other thread prefills the next piece meanwhile.
        return [states for _, states in read()]

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Generates the target's answer to each row; returns token ids."""
        self.start()
        with self._lock:
            return self._engine.answer(rows)


def _scratch(needed: int, in_memory: bool) -> Path:
    """Creates a private folder, in memory if `needed` bytes are free there."""
    free = shutil.disk_usage(MEMORY_FILES).free if os.access(MEMORY_FILES, os.W_OK) else 0
    if free >= needed:
        return Path(tempfile.mkdtemp(prefix="outrider-", dir=MEMORY_FILES))
    if in_memory:
        raise OutriderError(
            f"{socket.gethostname()}: {MEMORY_FILES} has {free / 1e9:.1f} GB free, but the states"
            f" of three pieces take {needed / 1e9:.1f} GB and must not be written to a disk; lower"
            " capture.batch_tokens, or enlarge it (for a container: --shm-size)"
        )
    return Path(tempfile.mkdtemp(prefix="outrider-"))
