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
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from outrider.training.distributed.spec import TrainingSpec, signals_stop

PRELOADED = [
    "deepspeed.runtime.zero.muon.original_muon",  # imports torch._inductor, 1.5 s
    "outrider.training.trainer",
    "tests.training.store_worker",
    "tests.training.stores",
    "wandb",
]
RUNNING: list[ForkServerProcess] = []
"""The ranks of the run in progress, for tests that kill them."""


def run_forked(command: list[str], spec: TrainingSpec, log_path: Path) -> tuple[int, bool]:
    """Runs the ranks to their end; the exit code, and whether a signal asked them to stop."""
    log_start = log_path.stat().st_size if log_path.exists() else 0
    RUNNING[:] = _forked(spec.training.processes, _train, spec.out_dir / "spec.json", log_path)
    with signals_stop(spec.stop_file) as stopped:
        for rank in RUNNING:
            rank.join()
    with log_path.open(encoding="utf-8", errors="replace") as log:
        log.seek(log_start)
        print(log.read(), end="", flush=True)
    codes = [rank.exitcode for rank in RUNNING]
    RUNNING.clear()
    return next((code for code in codes if code), 0), stopped.is_set()


def fork_ranks(work: Callable[[Path], None], folder: Path, processes: int) -> None:
    """Runs `work(folder)` in forked ranks that can communicate; all must end without an error."""
    ranks = _forked(processes, work, folder)
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * processes


def _forked(processes: int, work: Callable[..., None], *arguments: Path) -> list[ForkServerProcess]:
    """Ranks that run `work(*arguments)` in the environment that a launcher gives them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    world |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    ranks = []
    for rank in map(str, range(processes)):
        variables = world | {"RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {}
        environment = os.environ | variables
        ranks.append(context.Process(target=_rank, args=(environment, work, *arguments)))
        ranks[-1].start()
    return ranks


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _rank(environment: dict[str, str], work: Callable[..., None], *arguments: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    work(*arguments)


def _train(spec_path: Path, log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from tests.training.store_worker import main

    sys.exit(main(spec_path))
