"""One training process: alone, or one of several under torchrun, deepspeed or srun.

python -m outrider.training.distributed.worker SPEC.json
"""

import importlib
import os
import sys
import traceback
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.training.distributed.fail_fast import another_rank, leave_error, watch
from outrider.training.distributed.spec import TrainingSpec
from outrider.training.distributed.world import join_world

SUCCESS, FAILURE = 0, 1


def main(spec_path: Path) -> int:
    """Trains, and returns the exit code; an error is left for the launcher and for the other processes (peers.py)."""
    spec = TrainingSpec.model_validate_json(spec_path.read_text(encoding="utf-8"))
    rank = 0
    try:
        rank = join_world(spec.training.processes, by_slurm=spec.training.launcher is not None)
        watch(spec.out_dir, rank)
        _train(spec)
    except OutriderError as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        leave_error(spec.out_dir, rank, str(error), error.exit_code, expected=True)
        return error.exit_code
    except Exception as error:
        cause = another_rank(spec.out_dir, rank)
        if cause is None:
            traceback.print_exc()
        else:
            print(f"rank {rank}: ends because rank {cause} did", file=sys.stderr, flush=True)
        leave_error(spec.out_dir, rank, f"{type(error).__name__}: {error}", FAILURE, expected=False)
        return FAILURE
    return SUCCESS


def _train(spec: TrainingSpec) -> None:
    import torch

    from outrider.training.distributed.accelerator import start_environment

    start_environment()
    cores = len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", max(1, cores))))
    module, name = spec.feature_store.split(":")
    store = getattr(importlib.import_module(module), name).open(spec.features_dir)

    from outrider.training.trainer import Trainer

    Trainer(spec, store).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
