"""One training process, alone or under torchrun, deepspeed, srun or Ray.

python -m outrider.training.distributed.worker SPEC.json
"""

import faulthandler
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.common.errors import OutriderError
from outrider.training.distributed.fail_fast import RankError, watch, write_error
from outrider.training.distributed.spec import TrainingSpec

if TYPE_CHECKING:
    from outrider.data.features.feature_store import FeatureStore
    from outrider.data.streamed import StreamedFeatures


def main(spec_path: Path) -> int:
    """Trains and returns the exit code; records errors for launcher and ranks.

    The record is written before the error is printed, so that the launcher does not print it again.
    """
    faulthandler.enable()
    spec = TrainingSpec.model_validate_json(spec_path.read_text(encoding="utf-8"))
    rank = 0
    try:
        rank = join_world(spec.training.processes, by_slurm=spec.training.launcher is not None)
        watch(spec.errors_dir, rank)
        _train(spec)
    except OutriderError as error:
        write_error(spec.errors_dir, RankError(rank, str(error), error.exit_code, expected=True))
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        write_error(spec.errors_dir, RankError(rank, text, OutriderError.exit_code, expected=False))
        traceback.print_exc()
        return OutriderError.exit_code
    return 0


def _train(spec: TrainingSpec) -> None:
    import torch

    from outrider.training.distributed.accelerator import set_training_environment

    set_training_environment()
    cores = len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", max(1, cores))))

    from outrider.training.trainer import train_rank

    train_rank(spec, open_source(spec))


def open_source(spec: TrainingSpec) -> "FeatureStore | StreamedFeatures":
    """Opens the states that a run reads."""
    if spec.training.streams:
        from outrider.data.streamed import StreamedFeatures

        return StreamedFeatures.open(spec.features_dir)
    from outrider.data.features.feature_store import FeatureStore

    return FeatureStore.open(spec.features_dir)


def join_world(processes: int, by_slurm: bool) -> int:
    """Returns this process's rank.

    Raises an `OutriderError` unless `processes` processes were started, since each process without
    a launcher's variables would train as rank 0 of 1. srun's variables are read only with
    `by_slurm`, since every shell in a Slurm job has them too.
    """
    if by_slurm and "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ.update(slurm_world(os.environ))
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != processes:
        raise OutriderError(
            f"training.processes={processes}, but {started} processes were started;"
            " training.launcher must start exactly that many, over all machines together"
        )
    return int(os.environ.get("RANK", "0"))


def slurm_world(environment: Mapping[str, str]) -> dict[str, str]:
    """Translates srun's variables to torch's; several machines require MASTER_ADDR."""
    # "8(x2)": 8 tasks on each of two machines.
    tasks_each = environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split("(")[0].split(",")[0]
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"]
    if tasks != tasks_each and "MASTER_ADDR" not in environment:
        raise OutriderError(
            "MASTER_ADDR is not set: export the first machine's name for srun, as"
            " recipes/r1/launch/slurm.sbatch does"
        )
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": tasks,
        "LOCAL_WORLD_SIZE": tasks_each,
        "MASTER_ADDR": environment.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environment.get("MASTER_PORT", "29500"),  # torch's default
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
