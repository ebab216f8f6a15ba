"""Starts training, relays output, and stops the processes on SIGTERM or SIGINT.

    result = launch_training(TrainingSpec(target_dir=..., features_dir=..., out_dir=..., ...),
    recipe.cluster)

A single process is started directly; several are started by torchrun, by the command in
`training.launcher`, or on a Ray cluster (ray_train.py). After a signal, the workers write a
checkpoint and exit with code 75. An error in one worker ends all (fail_fast.py) and is raised here.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.json_forms import read_form
from outrider.common.process_tree import ProcessTree
from outrider.training.config import TrainingConfig
from outrider.training.distributed.fail_fast import describe_rank_errors, error_files, read_errors
from outrider.training.distributed.spec import (
    NOT_OURS,
    WORKER,
    Preempted,
    TrainingSpec,
    signals_stop,
)
from outrider.training.results import TrainingResult


def launch_training(spec: TrainingSpec, cluster: ClusterConfig | None = None) -> TrainingResult:
    """Trains on `spec.train`; publishes the speculator that is best on `spec.validation`.

    An unfinished run in `spec.out_dir` with the same settings is resumed. Returns the contents of
    `result.json`. If `cluster` has an address, the ranks run there.
    """
    training = spec.training.model_copy(
        update={"processes": processes_here(spec.training, cluster)}
    )
    spec = spec.model_copy(update={"training": training})
    spec.log_dir.mkdir(parents=True, exist_ok=True)
    spec.out_dir.mkdir(parents=True, exist_ok=True)
    for stale in (*error_files(spec.out_dir), spec.stop_file, spec.out_dir / "result.json"):
        stale.unlink(missing_ok=True)
    count = spec.training.processes
    print(f"starting {count} training process{'es' if count > 1 else ''}", flush=True)
    spec_path = spec.out_dir / "spec.json"
    write_json(spec_path, spec.model_dump(mode="json"), private=True)
    command = _command(spec_path, spec.training)
    log_path = spec.log_dir / "train.log"
    # The recipe's launcher takes precedence over the cluster.
    if cluster is not None and cluster.address is not None and spec.training.launcher is None:
        from outrider.training.distributed.ray_train import train_on_ray

        spec, code, stopped = train_on_ray(spec, cluster, log_path)
    else:
        code, stopped = _run(command, spec, log_path)
    _raise_failure(spec, code, stopped)
    return read_form(TrainingResult, spec.out_dir / "result.json", "rerun the command")


def processes_here(training: TrainingConfig, cluster: ClusterConfig | None) -> int:
    """Number of processes that `launch_training` starts, at most one per GPU of this machine.

    NCCL refuses two ranks on one GPU. Without GPUs, or if a launcher or a Ray cluster places the
    processes, it is `training.processes`. A resumed run may have another number.
    """
    placed_elsewhere = training.launcher is not None or (
        cluster is not None and cluster.address is not None
    )
    if training.processes == 1 or placed_elsewhere:
        return training.processes
    import torch

    gpus = torch.cuda.device_count()
    return min(training.processes, gpus) if gpus else training.processes


def _command(spec_path: Path, training: TrainingConfig) -> list[str]:
    if training.launcher is not None:
        return [*shlex.split(training.launcher), str(spec_path)]
    worker = ["-m", WORKER, str(spec_path)]
    if training.processes == 1:
        return [sys.executable, *worker]
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    return [sys.executable, *torchrun, f"--nproc_per_node={training.processes}", *worker]


def _run(command: list[str], spec: TrainingSpec, log_path: Path) -> tuple[int, bool]:
    """Runs the command; returns its exit code and whether a signal arrived.

    Output goes to the terminal and the log, but only to the log after the first error record.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // spec.training.processes)
    with ProcessTree() as tree:
        defaults = {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": NOT_OURS}
        environment = defaults | os.environ | tree.environment
        # Launcher scripts such as those in recipes/r1/launch need these.
        environment |= {"PYTHONUNBUFFERED": "1", "OUTRIDER_PYTHON": sys.executable}
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C then reaches only this process, which stops the workers itself.
                start_new_session=True,
            )
        except OSError as error:
            raise OutriderError(
                f"training.launcher: {command[0]} cannot be started ({error.strerror})"
            ) from None
        assert process.stdout is not None
        with signals_stop(spec.stop_file) as stopped, log_path.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                # Once a rank has failed, only the launcher still prints (torchrun: a 40-line
                # traceback), so output goes only to the log; `_raise_failure` reports the error.
                if not error_files(spec.out_dir):
                    print(line, end="", flush=True)
                log.write(line)
                log.flush()
            return process.wait(), stopped.is_set()


def _raise_failure(spec: TrainingSpec, code: int, stopped: bool) -> None:
    errors = read_errors(spec.errors_dir)
    if errors and errors[0].exit_code == Preempted.exit_code:
        raise Preempted(errors[0].message)
    if (stopped and code) or code == -signal.SIGTERM:
        raise Preempted(
            "training stopped after a signal, outside its steps; rerun the command to resume from"
            " the last checkpoint"
        )
    if errors:
        why = describe_rank_errors(errors, spec.training.processes)
        if not errors[0].expected:
            why += f"; its traceback is in {spec.log_dir / 'train.log'}"
        raise OutriderError(why)
    if code:
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise OutriderError(
            f"training {ended} without a message; see {spec.log_dir / 'train.log'} (out of memory?)"
        )
    if not (spec.out_dir / "result.json").exists():
        raise OutriderError(
            f"training.launcher={spec.training.launcher!r} ended without starting the workers; see"
            f" {spec.log_dir / 'train.log'}"
        )
