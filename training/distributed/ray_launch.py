"""Trains on a Ray cluster: groups of ranks, each started by Ray Train, until training has ended.

    spec, code, stopped = train_on_ray(spec, cluster, log_path)

Ray Train places the ranks, numbers them and notices lost ones; each rank is the program that
torchrun starts (ray_rank.py), so the weights are the same. What is ours is the loop around it:

- Ranks lost with their node, or killed: the others end, and the next group resumes from the last
  checkpoint with as many ranks as fit and divide `training.rows_per_step` (ray_sizes.py).
- Room again for more: after the next checkpoint the group is stopped as by SIGTERM, which writes
  another one, and a larger group resumes. Ray Train's own elastic scaling kills the workers, so it
  would lose the steps since the last checkpoint, and it takes any number of them.
- A message of a rank for the user, or an unexpected error that no lost rank explains, ends
  training.

`DataParallelTrainer` is what TorchTrainer derives from. TorchTrainer adds a process group in Ray's
processes, with torch in memory and a context on each GPU; here accelerate makes it in the ranks.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.supervision import signal_handlers
from outrider.training.config import TrainingConfig
from outrider.training.distributed.fail_fast import error_files, read_errors
from outrider.training.distributed.rank_output import RankOutput
from outrider.training.distributed.ray_rank import (
    RankEnded,
    RankSettings,
    ended_ranks,
    run_rank,
)
from outrider.training.distributed.ray_sizes import (
    SETTLE_S,
    STRATEGY,
    Growth,
    group_sizes,
    largest_that_fits,
)
from outrider.training.distributed.spec import Preempted, TrainingSpec

if TYPE_CHECKING:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

_LOOK_S = 0.5
"""Time between two looks at output, signals and room for more ranks, in seconds."""

_PASSED_ON = ("NCCL_", "GLOO_", "WANDB_", "HF_", "OUTRIDER_", "PYTHONWARNINGS", "TORCH_")
"""Beginnings of the launcher's environment variables that its ranks get where their node has none.
They go through Ray's object store; a runtime environment would write them into its logs."""

_RAY_TRAIN = {
    # Ray would change the directory, watch nodes that will be drained and restart ranks itself.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
}


def uses_ray(cluster: ClusterConfig, training: TrainingConfig) -> bool:
    """Whether the ranks run on the cluster.

    A launcher of the recipe goes before it. One process needs no private cluster, but must not take
    a GPU that Ray has given to a capture replica.
    """
    if cluster.address is None or training.launcher is not None:
        return False
    return training.processes > 1 or cluster.address != "local" or _shares_gpus(training)


def train_on_ray(
    spec: TrainingSpec, cluster: ClusterConfig, log_path: Path
) -> tuple[TrainingSpec, int, bool]:
    """Trains to the end. An open session of this process is used.

    Returns the last group's spec, which has its number of ranks and its error records, its exit
    code, and whether a signal asked to stop. Raises an `OutriderError` if there is no room for one
    rank, or if ranks are lost `cluster.training_restarts` times without a new checkpoint between.
    """
    # A private cluster has a core for each process, as torchrun has them share the machine's.
    wanted = spec.training.processes * cluster.training_cores
    cores = max(wanted, len(os.sched_getaffinity(0)))
    with open_cluster(cluster, cores), _asked_to_stop(spec.stop_file) as stop:
        return _train_groups(spec, cluster, log_path, stop)


def _train_groups(
    spec: TrainingSpec, cluster: ClusterConfig, log_path: Path, stop: threading.Event
) -> tuple[TrainingSpec, int, bool]:
    each = _resources_each(cluster)
    sizes = group_sizes(spec.training.processes, spec.training.rows_per_step)
    wait_s, losses, before = cluster.start_timeout_s, 0, _newest_checkpoint(spec)
    attempt = max((int(path.name.split("-")[1]) for path in _attempts(spec)), default=0)
    while True:
        size = largest_that_fits(sizes[:1], each, SETTLE_S, stop.is_set)
        if size is None and not stop.is_set():
            if wait_s:
                print(_waits(spec, each, wait_s), flush=True)
            size = largest_that_fits(sizes, each, wait_s, stop.is_set)
        if size is None and not stop.is_set():
            still_s = cluster.start_timeout_s - wait_s
            size = largest_that_fits(sizes[-1:], each, still_s, stop.is_set)
        if stop.is_set():
            return spec, Preempted.exit_code, True
        if size is None:
            raise OutriderError(_no_room(each))
        wait_s = 0.0  # ranks that are lost later need not all come back
        attempt += 1
        group = _Group(spec, size, attempt, cluster, log_path)
        if size < spec.training.processes:
            print(_smaller(spec, size), flush=True)
        with Growth(size, sizes, each) as growth:
            lost = group.run(stop, growth, before)
        newest = _newest_checkpoint(spec)
        if group.grows:
            spec.stop_file.unlink(missing_ok=True)
        if group.grows and group.code == Preempted.exit_code and not stop.is_set():
            print("training: the cluster has room for more processes", flush=True)
        elif lost and not stop.is_set():
            losses = losses + 1 if newest == before else 1
            why = f"training lost {lost} on its cluster"
            if losses > cluster.training_restarts:
                raise OutriderError(
                    f"{why}, {losses} times without a new checkpoint between; see {log_path}"
                    " (out of memory?)"
                )
            from_where = newest or "the beginning"
            print(f"{why}; it goes on from {from_where}", flush=True)
        else:
            if group.code == 0:
                for path in _attempts(spec):
                    shutil.rmtree(path)
            return group.spec, group.code, stop.is_set()
        before = newest


class _Group:
    """One group of ranks, from its start to its end."""

    def __init__(
        self, spec: TrainingSpec, size: int, attempt: int, cluster: ClusterConfig, log_path: Path
    ) -> None:
        training = spec.training.model_copy(update={"processes": size})
        self.spec = spec.model_copy(update={"training": training, "attempt": attempt})
        self.cluster, self.log_path = cluster, log_path
        self.code, self.grows = 1, False
        self._failures: dict[int, Exception] = {}
        self._error: Exception | None = None

    def run(self, stop: threading.Event, growth: Growth, before: str | None) -> str | None:
        """Runs the group, relays its output, and stops it when it can be larger.

        Returns the ranks that were lost, in words, if the group ended because of them.
        """
        spec = self.spec
        spec.errors_dir.mkdir(parents=True)
        spec_path = spec.errors_dir / "spec.json"
        write_json(spec_path, spec.model_dump(mode="json"))
        thread = threading.Thread(target=self._fit, args=(spec_path,), name="ray-train")
        with RankOutput(spec.log_dir, spec.training.processes, self.log_path) as output:
            thread.start()
            while thread.is_alive():
                thread.join(_LOOK_S)
                output.relay(to_terminal=not error_files(spec.errors_dir))
                trains = _newest_checkpoint(spec) != before
                if trains and not self.grows and not stop.is_set() and growth.possible():
                    self.grows = True
                    spec.stop_file.touch()
        return self._lost() if self.code else None

    def _fit(self, spec_path: Path) -> None:
        """Runs the group by Ray Train, in a thread: in the main one it would handle Ctrl-C."""
        from ray.train import WorkerGroupError

        try:
            self._trainer(spec_path).fit()
            self.code = max(ended_ranks(self.spec.errors_dir).values())
        except WorkerGroupError as error:
            self._failures = error.worker_failures
        except Exception as error:  # raised in the main thread
            self._error = error

    def _trainer(self, spec_path: Path) -> "DataParallelTrainer":
        import ray
        from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from outrider.training.distributed.ray_backend import RankBackendConfig

        spec, each = self.spec, _resources_each(self.cluster)
        settings = RankSettings(
            spec_path=str(spec_path),
            errors_dir=str(spec.errors_dir),
            log_dir=str(spec.log_dir),
            environment={
                name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)
            },
            cores=self.cluster.training_cores,
            cluster_address=ray.get_runtime_context().gcs_address,
        )
        os.environ.update(_RAY_TRAIN)
        # Ray's annotations name the classes of its first version.
        run_config: Any = RunConfig(
            name=f"attempt-{spec.attempt}",
            storage_path=str(spec.errors_dir / "ray"),
            failure_config=FailureConfig(
                max_failures=0, controller_failure_limit=0, max_preemption_failures=0
            ),
        )
        return DataParallelTrainer(
            run_rank,
            train_loop_config=asdict(settings),
            backend_config=RankBackendConfig(),
            scaling_config=ScalingConfig(
                num_workers=spec.training.processes,
                use_gpu="GPU" in each,
                resources_per_worker=each,
                placement_strategy=STRATEGY,
            ),
            run_config=run_config,
        )

    def _lost(self) -> str | None:
        """The lost ranks, in words, or None if the group ended for another reason."""
        from ray.exceptions import RayError
        from ray.train import ControllerError
        from ray.train.v2._internal.exceptions import RayTrainError

        errors = read_errors(self.spec.errors_dir)
        if errors and errors[0].expected:
            self.code = errors[0].exit_code
            return None
        if isinstance(self._error, ControllerError):
            # A node was lost, or its room was taken, between the reservation and the start.
            with self.log_path.open("a", encoding="utf-8") as log:
                print(self._error, file=log)
            return "processes at their start"
        if self._error is not None:
            raise self._error
        with_message = {error.rank for error in errors}
        lost = []
        for rank, failure in sorted(self._failures.items()):
            if isinstance(failure, OutriderError):
                raise OutriderError(f"rank {rank}: {failure}")
            if isinstance(failure, (RayTrainError, RayError)):
                lost.append(f"rank {rank} (its node or worker is gone)")
            elif not isinstance(failure, RankEnded):
                raise failure
        for rank, code in sorted(ended_ranks(self.spec.errors_dir).items()):
            if code < 0 and rank not in with_message:
                lost.append(f"rank {rank} (killed by signal {-code})")
            elif code > 0:
                self.code = code
        return ", ".join(lost) or None


@contextmanager
def _asked_to_stop(stop_file: Path) -> Iterator[threading.Event]:
    """Passes signals on to the ranks, by the file that they look for after every step."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        stop.set()
        stop_file.touch()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    with signal_handlers(ask, (signal.SIGTERM, signal.SIGINT)):
        yield stop


def _shares_gpus(training: TrainingConfig) -> bool:
    """Whether capture replicas run at the same time, in the open session, and have GPUs."""
    if not training.streams:
        return False
    import ray

    return ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0


def _resources_each(cluster: ClusterConfig) -> dict[str, float]:
    """What a rank reserves: cores, and a GPU where the cluster has any."""
    import ray

    gpus = ray.cluster_resources().get("GPU", 0)
    return {"CPU": float(cluster.training_cores)} | ({"GPU": 1.0} if gpus else {})


def _waits(spec: TrainingSpec, each: dict[str, float], wait_s: float) -> str:
    return (
        f"training: waits up to {wait_s:g} s for room for {spec.training.processes} processes on"
        f" the cluster ({_amounts(each)} each)"
    )


def _no_room(each: dict[str, float]) -> str:
    import ray

    free = {name: ray.available_resources().get(name, 0.0) for name in each}
    return (
        f"training: the cluster has no room for one process ({_amounts(each)}); free over all"
        f" nodes: {_amounts(free)}. Add nodes, or lower cluster.training_cores"
    )


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _smaller(spec: TrainingSpec, size: int) -> str:
    return (
        f"training: the cluster has room for {size} of {spec.training.processes} processes (a"
        f" divisor of training.rows_per_step={spec.training.rows_per_step}); it grows when there is"
        " more"
    )


def _attempts(spec: TrainingSpec) -> list[Path]:
    return sorted(spec.out_dir.glob("attempt-*"))


def _newest_checkpoint(spec: TrainingSpec) -> str | None:
    names = sorted(path.name for path in (spec.out_dir / "checkpoints").glob("step-*"))
    return names[-1] if names else None
