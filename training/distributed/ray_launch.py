"""Trains on a Ray cluster: Ray Train starts the ranks, and starts them again after a loss.

    spec, code, stopped = train_on_ray(spec, cluster, log_path)

Each rank is the program that torchrun starts (ray_rank.py), so the weights are the same. Ray Train
places the ranks, notices those that are lost with their node or killed, and starts another group
with as many ranks as the cluster has room for; the ranks resume from the last checkpoint. A group
that could be larger is started again too. An exception of a rank ends training: a rank that reports
one ends without an error for Ray.

`DataParallelTrainer` is what TorchTrainer derives from. TorchTrainer adds a process group in Ray's
processes, with torch in memory and a context on each GPU; here accelerate makes it in the ranks.
This module is imported only where a run uses Ray.
"""

import math
import os
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import ClusterSession, open_cluster
from outrider.common.errors import OutriderError
from outrider.training.distributed.fail_fast import error_files
from outrider.training.distributed.rank_output import RankOutput
from outrider.training.distributed.ray_rank import (
    SPEC,
    RankBackendConfig,
    RankSettings,
    ended_ranks,
    groups,
    run_rank,
)
from outrider.training.distributed.spec import Preempted, TrainingSpec, signals_stop

_LOOK_S = 0.5
"""Time between two looks at the ranks' output, in seconds."""

_FOLDER = "ray"
"""What Ray Train writes below the training folder."""

_START_S = 60.0
"""Time for a group to start, in seconds. After a loss, Ray Train may first count the lost node."""

_RESIZE_S = 60.0
"""Time between two looks for room for more ranks, in seconds."""

_PASSED_ON = ("NCCL_", "GLOO_", "WANDB_", "HF_", "OUTRIDER_", "PYTHONWARNINGS", "TORCH_")
"""Beginnings of the launcher's environment variables that its ranks get where their node has none.
They go through Ray's object store; a runtime environment would write them into its logs."""


def train_on_ray(
    spec: TrainingSpec, cluster: ClusterConfig, log_path: Path
) -> tuple[TrainingSpec, int, bool]:
    """Trains to the end. An open session of this process is used.

    Returns the last group's spec, which has its number of ranks and its error records, its exit
    code, and whether a signal asked to stop. Raises an `OutriderError` if there is no room for one
    rank, or if ranks are lost more than a run resumes.
    """
    # A private cluster has one core per process, as under torchrun.
    wanted = spec.training.processes * cluster.training_cores
    cores = max(wanted, len(os.sched_getaffinity(0)))
    with open_cluster(cluster, cores) as session, signals_stop(spec.stop_file) as stop:
        trainer = _trainer(spec, cluster, _resources_each(session, cluster))
        before = len(groups(spec.out_dir))
        failure = _fit(trainer, spec, log_path, stop)
        if len(groups(spec.out_dir)) == before:  # no rank has started
            if stop.is_set():
                return spec, Preempted.exit_code, True
            raise OutriderError(
                f"training: no process started in {cluster.start_timeout_s:g} s; compare"
                " `ray status` with a core, and a GPU where the cluster has any, for each of"
                " training.processes"
            ) from failure
        group = _spec_of(groups(spec.out_dir)[-1])
        if failure is not None and not stop.is_set():
            for error in getattr(failure, "worker_failures", {}).values():
                if isinstance(error, OutriderError):
                    raise error
            raise OutriderError(
                f"training lost {_lost(group)} on its cluster, more often than the"
                f" {cluster.training_restarts} times that it resumes; see {log_path}"
                " (out of memory?)"
            ) from failure
        code = max(ended_ranks(group.errors_dir).values(), default=Preempted.exit_code)
        if code == 0:
            for path in (*groups(spec.out_dir), spec.out_dir / _FOLDER):
                shutil.rmtree(path)
        return group, code, stop.is_set()


def _fit(
    trainer: Any, spec: TrainingSpec, log_path: Path, stop: threading.Event
) -> Exception | None:
    """Runs Ray Train and relays the ranks' output; returns the error that ended it."""
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # handled by the main thread
            failures.append(error)

    # In a thread: in the main one Ray Train would handle Ctrl-C.
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    before = seen = len(groups(spec.out_dir))
    with RankOutput(spec.log_dir, spec.training.processes, log_path) as output:
        thread.start()
        while thread.is_alive() and not (stop.is_set() and seen == before):
            thread.join(_LOOK_S)
            started = groups(spec.out_dir)
            output.relay(to_terminal=not (started and error_files(started[-1])))
            if len(started) > seen > before:
                print(_resumes(*map(_spec_of, started[-2:])), flush=True)
            seen = len(started)
    return failures[0] if failures else None


def _trainer(spec: TrainingSpec, cluster: ClusterConfig, each: dict[str, float]) -> Any:
    """Ray Train's trainer of all groups of ranks, one after another."""
    settings = RankSettings(
        spec=spec.model_dump(mode="json"),
        environment={
            name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)
        },
        cores=cluster.training_cores,
        cluster_address=ray.get_runtime_context().gcs_address,
    )
    os.environ |= {
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{_START_S:g}",
    }
    processes = spec.training.processes
    # Ray's annotations name the classes of its first version.
    run_config: Any = RunConfig(
        name=_FOLDER,
        storage_path=str(spec.out_dir),
        failure_config=FailureConfig(
            max_failures=cluster.training_restarts,
            controller_failure_limit=math.ceil(cluster.start_timeout_s / _START_S),
        ),
    )
    return DataParallelTrainer(
        run_rank,
        train_loop_config=asdict(settings),
        backend_config=RankBackendConfig(),
        scaling_config=ScalingConfig(
            num_workers=(1, processes) if processes > 1 else 1,
            use_gpu="GPU" in each,
            resources_per_worker=each,
            placement_strategy="PACK",
            elastic_resize_monitor_interval_s=_RESIZE_S,
        ),
        run_config=run_config,
    )


def _resources_each(session: ClusterSession, cluster: ClusterConfig) -> dict[str, float]:
    """What a rank reserves: cores, and a GPU where the cluster has any."""
    nodes = session.nodes()
    most = max(node.cpus for node in nodes)
    if cluster.training_cores > most:
        raise OutriderError(
            f"cluster: no room for one training process, which takes {cluster.training_cores} core;"
            f" the largest node has {most:g}; add nodes"
        )
    gpus = any(node.gpus for node in nodes)
    return {"CPU": float(cluster.training_cores)} | ({"GPU": 1.0} if gpus else {})


def _spec_of(group: Path) -> TrainingSpec:
    return TrainingSpec.model_validate_json((group / SPEC).read_text(encoding="utf-8"))


def _resumes(earlier: TrainingSpec, group: TrainingSpec) -> str:
    """Why another group of ranks has started, for people."""
    count = group.training.processes
    why = f"lost {_lost(earlier)} on its cluster"
    if count > earlier.training.processes:
        why = "has room for more processes"
    checkpoints = (group.out_dir / "checkpoints").glob("step-*")
    newest = max((path.name for path in checkpoints), default="the beginning")
    return f"training {why}; it resumes with {count} processes from {newest}"


def _lost(group: TrainingSpec) -> str:
    """The ranks of a group that were killed; those on a lost node leave nothing."""
    killed = [
        f"rank {rank} (killed by signal {-code})"
        for rank, code in sorted(ended_ranks(group.errors_dir).items())
        if code < 0
    ]
    return ", ".join(killed) or "processes with their node"
