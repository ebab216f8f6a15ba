"""Trains on a Ray cluster; Ray Train starts and restarts the ranks.

    spec, code, stopped = train_on_ray(spec, cluster, log_path)

Each rank runs worker.py, as under torchrun, so the trained weights are the same. Each rank is a
child process of a Ray Train worker, because Ray runs functions in a thread of an actor, where
signal handlers cannot be installed, ending the rank would end the actor, and output would go to
Ray's session folder. Ray's logs contain only exit codes.

common/cluster/ranks.py gives each rank its number, its GPU and the address of rank 0. If ranks are
killed or lost with their node, or if the cluster has room for more ranks, it starts another group
with as many ranks as fit, which resumes from the last checkpoint. A rank's exception ends training:
the rank records it, and its worker returns to Ray without an error. accelerate creates the process
group, in the ranks. This module is imported only if a run uses Ray.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TypedDict

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.environment import OF_RANKS, forwarded_variables
from outrider.common.cluster.ranks import (
    RankLayout,
    RankTrainer,
    from_rank_zero,
    head_address,
    node_address,
    rank_error,
    rank_trainer,
    this_rank,
)
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import has_gpus
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.process_tree import ProcessTree
from outrider.training.distributed.fail_fast import error_files
from outrider.training.distributed.spec import (
    NOT_OURS,
    WORKER,
    Preempted,
    TrainingSpec,
    signals_stop,
)

SPEC = "spec.json"
"""File with a group's specification, in the folder of its error records."""

_FOLDER = "ray"
"""Subfolder of the training folder that Ray Train writes to."""

_START_S = 60.0
"""Timeout for the start of a group, in seconds.
It can expire because Ray may still count lost nodes as available."""

_RESIZE_S = 60.0
"""Interval between checks for whether more ranks fit, in seconds."""


def train_on_ray(
    spec: TrainingSpec, cluster: ClusterConfig, log_path: Path
) -> tuple[TrainingSpec, int, bool]:
    """Trains to completion; reuses this process's open Ray session, if any.

    Returns the last group's spec (with its number of ranks and folder of error records), its exit
    code, and whether a signal requested a stop. Raises an `OutriderError` if there is no room for
    one rank, or if ranks are lost more than `cluster.training_restarts` times.
    """
    # As under torchrun, more processes may run on a private cluster than there are cores.
    cores = max(spec.training.processes * cluster.training_cores, len(os.sched_getaffinity(0)))
    with open_cluster(cluster, cores), signals_stop(spec.stop_file) as stop:
        trainer = _trainer(spec, cluster)
        before = len(group_folders(spec.out_dir))
        failure = _fit(trainer, spec, log_path, stop)
        if len(group_folders(spec.out_dir)) == before:  # no rank has started
            if stop.is_set():
                return spec, Preempted.exit_code, True
            raise OutriderError(
                f"training: no process started in {cluster.start_timeout_s:g} s; check with"
                " `ray status` that each of training.processes has a free core, and a free GPU if"
                " the cluster has GPUs"
            ) from failure
        group = _spec_of(group_folders(spec.out_dir)[-1])
        if failure is not None and not stop.is_set():
            raise rank_error(failure) or OutriderError(
                "training lost processes on its cluster more than"
                f" {cluster.training_restarts} times (cluster.training_restarts); see {log_path}"
                " (out of memory?)"
            ) from failure
        if error_files(group.errors_dir) or not (spec.out_dir / "result.json").exists():
            return group, OutriderError.exit_code, stop.is_set()
        for path in (*group_folders(spec.out_dir), spec.out_dir / _FOLDER):
            shutil.rmtree(path)
        return group, 0, stop.is_set()


def _fit(
    trainer: RankTrainer, spec: TrainingSpec, log_path: Path, stop: threading.Event
) -> Exception | None:
    """Runs Ray Train and relays output; returns the error that ended it."""
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # handled by the main thread
            failures.append(error)

    # Not in the main thread, where Ray Train would handle Ctrl-C itself.
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    before = seen = len(group_folders(spec.out_dir))
    logs = [rank_log(spec.log_dir, rank) for rank in range(spec.training.processes)]
    for path in logs:
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
    with logs[0].open(encoding="utf-8", errors="replace") as output:
        thread.start()
        while thread.is_alive() and not (stop.is_set() and seen == before):
            thread.join(0.5)
            started = group_folders(spec.out_dir)
            text = output.read()
            if not (started and error_files(started[-1])):
                print(text, end="", flush=True)
            if len(started) > seen > before:
                checkpoints = (spec.out_dir / "checkpoints").glob("step-*")
                newest = max((path.name for path in checkpoints), default="the beginning")
                print(
                    "training lost processes, or has room for more; it resumes with"
                    f" {_spec_of(started[-1]).training.processes} processes from {newest}",
                    flush=True,
                )
            seen = len(started)
    with log_path.open("ab") as log:
        for path in logs:
            log.write(path.read_bytes())
            path.unlink()
    return failures[0] if failures else None


def _trainer(spec: TrainingSpec, cluster: ClusterConfig) -> RankTrainer:
    """Returns the trainer that runs the groups of ranks in turn."""
    settings: RankSettings = {
        "spec": spec.model_dump(mode="json"),
        "worker": WORKER,
        "environment": forwarded_variables(OF_RANKS),
    }
    layout = RankLayout(
        ranks=spec.training.processes,
        cluster=cluster,
        with_gpu=has_gpus(),
        folder=spec.out_dir / _FOLDER,
        group_start_s=_START_S,
        resize_s=_RESIZE_S,
    )
    return rank_trainer(run_rank, settings, layout)


def _spec_of(group: Path) -> TrainingSpec:
    return TrainingSpec.model_validate_json((group / SPEC).read_text(encoding="utf-8"))


class RankSettings(TypedDict):
    """What every rank of a training receives."""

    spec: dict[str, object]
    """The `TrainingSpec`, as JSON values."""
    worker: str
    """The module that a rank's process runs."""
    environment: dict[str, str]
    """Variables of the launcher; a node's own override them."""


def run_rank(settings: RankSettings) -> None:
    """Runs this worker's rank to completion.

    Raises a `RuntimeError` if the rank was killed, so that Ray Train starts another group. After
    any other error, it returns normally, because the launcher reads the rank's error record.
    """
    spec = TrainingSpec.model_validate(settings["spec"])
    numbers = this_rank()
    first = from_rank_zero(_new_group(spec, numbers.ranks) if numbers.rank == 0 else None)
    spec_path = Path(first[0])
    rank_environment = {
        "RANK": numbers.rank,
        "WORLD_SIZE": numbers.ranks,
        "LOCAL_RANK": numbers.local_rank,
        "LOCAL_WORLD_SIZE": numbers.local_ranks,
        "MASTER_ADDR": first[1],
        "MASTER_PORT": first[2],
    }
    if not spec_path.is_file():
        raise OutriderError(
            f"{spec_path} does not exist on node {socket.gethostname()}; training on a cluster"
            " needs the run directory on a disk that all nodes share"
        )
    with ProcessTree() as tree, rank_log(spec.log_dir, numbers.rank).open("ab") as log:
        # The node's variables override the launcher's: CUDA_VISIBLE_DEVICES is of this node.
        environment = (
            {"PYTHONWARNINGS": NOT_OURS} | settings["environment"] | os.environ | tree.environment
        )
        environment |= {name: str(value) for name, value in rank_environment.items()}
        environment |= {
            "OMP_NUM_THREADS": str(ClusterConfig.training_cores),
            "PYTHONUNBUFFERED": "1",
            "RAY_ADDRESS": head_address(),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", settings["worker"], str(spec_path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        code = process.wait()
    if code < 0:
        raise RuntimeError(f"rank {numbers.rank} was killed by signal {-code}")


def _new_group(spec: TrainingSpec, world: int) -> tuple[str, str, int]:
    """Writes a new group's specification; returns its path, master host and port."""
    number = (
        max((int(path.name.split("-")[1]) for path in group_folders(spec.out_dir)), default=0) + 1
    )
    training = spec.training.model_copy(update={"processes": world})
    spec = spec.model_copy(update={"training": training, "attempt": number})
    spec.errors_dir.mkdir(parents=True, exist_ok=True)
    write_json(spec.errors_dir / SPEC, spec.model_dump(mode="json"), private=True)
    host = node_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return str(spec.errors_dir / SPEC), host, probe.getsockname()[1]


def group_folders(out_dir: Path) -> list[Path]:
    """Returns the folders of all started groups of ranks, in order."""
    folders = (path.parent for path in out_dir.glob(f"attempt-*/{SPEC}"))
    return sorted(folders, key=lambda path: int(path.name.split("-")[1]))


def rank_log(log_dir: Path, rank: int) -> Path:
    """Returns a rank's own log file; a shared file could lose appends."""
    return log_dir / f"train.rank{rank}.log"
