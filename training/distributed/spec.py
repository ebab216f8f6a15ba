"""A training run's specification, passed to workers as JSON. Torch-free.

TrainingSpec.model_validate_json(Path("spec.json").read_text())
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from outrider.common.errors import OutriderError
from outrider.common.process_tree import signal_handlers
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig

WORKER = "outrider.training.distributed.worker"
"""Module that every launcher runs in each rank."""

NOT_OURS = "ignore::FutureWarning:torch.distributed.c10d_logger"
"""Filter for a warning about DeepSpeed's use of a renamed torch function."""


Directory = Annotated[Path, AfterValidator(lambda path: path.resolve())]


class SequenceSampling(NamedTuple):
    """How a sequence's tokens were sampled."""

    temperature: float
    top_p: float
    top_k: int
    """0: no limit."""
    hard: bool = False
    """Whether something else shaped the tokens. Unless it is a grammar with usable masks, the
    teacher is then the logged token (training/teacher.py)."""
    grammar: int = -1
    """Index of the grammar in `TrainingSpec.grammars`; -1: none."""


class TrainingSpec(BaseModel):
    """One training run; sequences are identified by their feature store ids."""

    model_config = ConfigDict(extra="forbid")

    target_dir: Directory
    features_dir: Directory
    """Directory of a feature store or, with `training.features: streamed`, of a stream."""
    train: list[str] = Field(min_length=1)
    validation: list[str] = Field(min_length=1)
    sampling: dict[str, SequenceSampling]
    """Sampling parameters by sequence id; they determine acceptance in loss and validation."""
    grammars: list[str] = []
    """The distinct grammars of the sequences (`GrammarMasks.of`)."""
    structured_outputs: dict[str, object] = {}
    """Keys of vLLM's StructuredOutputsConfig, which determine the grammars' masks."""
    speculator: SpeculatorConfig
    training: TrainingConfig
    out_dir: Directory
    """Directory of checkpoints, the best speculator so far, and result.json."""
    publish_dir: Directory
    """Directory of the trained speculator."""
    log_dir: Directory
    """Directory of metrics.jsonl and the trackers' files."""
    attempt: int = 0
    """Number of this group of ranks, if several are started in turn.
    Ranks of an earlier group may still be running on a lost node and writing files."""

    def settings(self) -> dict[str, object]:
        """Returns the settings that determine the weights; resuming requires them unchanged."""
        return self.model_dump(
            mode="json",
            exclude={
                **dict.fromkeys(("out_dir", "publish_dir", "log_dir", "attempt"), True),
                "training": {
                    *("trackers", "tracking_project", "wandb_project"),
                    *("processes", "launcher"),
                    *("checkpoint_every", "parity", "features"),
                },
            },
        )

    @property
    def errors_dir(self) -> Path:
        """Directory of the error records of this attempt's ranks."""
        return self.out_dir / f"attempt-{self.attempt}" if self.attempt else self.out_dir

    @property
    def checkpoints_dir(self) -> Path:
        """Directory of the checkpoints."""
        return self.out_dir / "checkpoints"

    @property
    def stop_file(self) -> Path:
        """File whose existence stops workers on all machines after their current step."""
        return self.out_dir / "stop"


class Preempted(OutriderError):
    """Training wrote a checkpoint and stopped after a signal; rerun to resume."""

    exit_code = 75
    """EX_TEMPFAIL"""


@contextmanager
def signals_stop(stop_file: Path) -> Iterator[threading.Event]:
    """In this context, SIGTERM and SIGINT stop the workers after their current step.

    The handler creates `stop_file`, which the workers check. A launcher that received the signal
    would kill them before they write their checkpoint.
    """
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        stop_file.touch()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    with signal_handlers(stop, (signal.SIGTERM, signal.SIGINT)):
        yield stopped
