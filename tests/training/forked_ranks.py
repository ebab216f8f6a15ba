"""Training ranks forked from a process that has imported torch and DeepSpeed already.

    run_forked(command, spec, log_path)     # in place of the launcher's subprocess

A rank in a fresh interpreter spends 6 s of a core on imports before its first step, torchrun 3 s
more. Each forked rank is a process as well: with its own collectives, output and exit code, and it
can be killed. What the real launchers do (start, signals, exit codes, fail fast across ranks) is
tested with real launchers, once each.
"""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from outrider.training.distributed.spec import TrainingSpec, signals_stop

PRELOADED = [
    "deepspeed.runtime.zero.muon.original_muon",  # imports torch._inductor, 1.5 s
    "outrider.training.trainer",
    "tests.training.stores",
    "wandb",
]
RUNNING: list[ForkServerProcess] = []
"""The ranks of the run in progress, for tests that kill them."""


def run_forked(command: list[str], spec: TrainingSpec, log_path: Path) -> tuple[int, bool]:
    """Runs the ranks to their end; the exit code, and whether a signal asked them to stop."""
    context = _context()
    port, log_start = _free_port(), log_path.stat().st_size if log_path.exists() else 0
    processes = spec.training.processes
    RUNNING[:] = [
        context.Process(
            target=_rank,
            args=(spec.out_dir / "spec.json", log_path, dict(os.environ), rank, processes, port),
        )
        for rank in range(processes)
    ]
    for rank in RUNNING:
        rank.start()
    with signals_stop(spec.stop_file) as stopped:
        for rank in RUNNING:
            rank.join()
    with log_path.open(encoding="utf-8", errors="replace") as log:
        log.seek(log_start)
        print(log.read(), end="", flush=True)
    codes = [rank.exitcode for rank in RUNNING]
    RUNNING.clear()
    return next((code for code in codes if code), 0), stopped.is_set()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _rank(
    spec_path: Path,
    log_path: Path,
    environment: dict[str, str],
    rank: int,
    processes: int,
    port: str,
) -> None:
    """One rank, as a launcher starts it: its environment, its output in the log."""
    _become(rank, processes, port, environment)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from outrider.training.distributed.worker import main

    sys.exit(main(spec_path))


def fork_ranks(work: Callable[[Path], None], folder: Path, processes: int) -> None:
    """Runs `work(folder)` in forked ranks that can communicate; all must end without an error."""
    port = _free_port()
    ranks = [
        _context().Process(
            target=_work, args=(work, folder, dict(os.environ), rank, processes, port)
        )
        for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * processes


def _work(
    work: Callable[[Path], None],
    folder: Path,
    environment: dict[str, str],
    rank: int,
    processes: int,
    port: str,
) -> None:
    _become(rank, processes, port, environment)
    work(folder)


def _become(rank: int, processes: int, port: str, environment: dict[str, str]) -> None:
    """Sets the environment that a launcher gives to a rank."""
    os.environ.clear()
    os.environ.update(environment)
    if processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
