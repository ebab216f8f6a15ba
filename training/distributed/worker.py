"""One training process: alone, or a rank under torchrun, deepspeed or srun.

python -m outrider.training.distributed.worker SPEC.json
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record

from outrider.common.errors import OutriderError
from outrider.training.distributed.fail_fast import error_record, root_cause, watch, write_error
from outrider.training.distributed.launcher_environment import join_world
from outrider.training.distributed.spec import TrainingSpec

SUCCESS, FAILURE = 0, 1


class RankErrors(ErrorHandler):
    """Records this rank's exception in the run directory, and for torchrun where it asks for it.

    torchelastic's own handler knows neither the shared directory nor errors without a traceback.
    Its `initialize` enables faulthandler, which prints a stack for a segmentation fault.
    """

    def __init__(self, errors_dir: Path) -> None:
        self.errors_dir = errors_dir
        self.rank = 0

    def record_exception(self, e: BaseException) -> None:
        """Writes the error and prints it; a consequence of another rank's error is only noted.

        The launcher relays no line after the first record, so the record is written first.
        """
        if isinstance(e, OutriderError):
            failure = error_record(str(e), e.exit_code, expected=True)
            printed = f"rank {self.rank}: {e}"
        else:
            text, printed = f"{type(e).__name__}: {e}", traceback.format_exc()
            failure = error_record(text, FAILURE, expected=False, traceback=printed)
            cause = root_cause(self.errors_dir, self.rank)
            if cause is not None:
                printed = f"rank {self.rank}: ends because rank {cause} failed"
                failure = error_record(text, FAILURE, expected=False)
        write_error(self.errors_dir, self.rank, failure)
        print(printed, file=sys.stderr, flush=True)
        for_torchrun = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if for_torchrun:
            Path(for_torchrun).write_text(json.dumps(failure), encoding="utf-8")


def main(spec_path: Path) -> int:
    """Trains, and returns the exit code."""
    spec = TrainingSpec.model_validate_json(spec_path.read_text(encoding="utf-8"))
    errors = RankErrors(spec.errors_dir)
    try:
        record(_train, errors)(spec, errors)
    except OutriderError as error:
        return error.exit_code
    except Exception:  # recorded
        return FAILURE
    return SUCCESS


def _train(spec: TrainingSpec, errors: RankErrors) -> None:
    by_slurm = spec.training.launcher is not None
    errors.rank = join_world(spec.training.processes, by_slurm=by_slurm)
    watch(spec.errors_dir, errors.rank)

    import torch

    from outrider.training.distributed.accelerator import start_environment

    start_environment()
    cores = len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", max(1, cores))))
    module, name = spec.feature_store.split(":")
    store = getattr(importlib.import_module(module), name).open(spec.features_dir)

    from outrider.training.feature_source import source_of
    from outrider.training.trainer import Trainer

    Trainer(spec, source_of(store, spec.masked)).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
