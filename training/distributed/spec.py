"""The order that `launch.train` writes and every worker reads: what to train, from what, to where. No torch in here.

TrainingSpec.model_validate_json(Path("spec.json").read_text())
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.errors import OutriderError
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig


class Sampling(BaseModel):
    """How the customer's request of a sequence was sampled."""

    model_config = ConfigDict(extra="forbid")

    temperature: float
    top_p: float = 1.0


class TrainingSpec(BaseModel):
    """One training run. Sequences are named by their ids in the feature store."""

    model_config = ConfigDict(extra="forbid")

    target_dir: Path
    features_dir: Path
    feature_store: str
    """Import string of the class whose `open(features_dir)` gives the store: training does not know who made it."""
    train: list[str] = Field(min_length=1)
    validation: list[str] = Field(min_length=1)
    sampling: dict[str, Sampling]
    """Of every sequence: what its drafts are accepted against, in the loss and in the validation."""
    speculator: SpeculatorConfig
    training: TrainingConfig
    probabilistic_drafts: bool = False
    """Whether serving samples its drafts; the loss and the acceptance on the validation part are computed for that."""
    out_dir: Path
    """Checkpoints, the best speculator so far, result.json."""
    publish_dir: Path
    """The trained speculator."""
    log_dir: Path
    """metrics.jsonl, the tracker's files."""

    def settings(self) -> dict[str, Any]:
        """All of it that decides the weights."""
        silent = {
            "wandb_project",
            "processes",
            "launcher",
            "checkpoint_every",
            "keep_checkpoints",
            "max_rollbacks",
            "parity",
            "tokens_per_s",
        }
        return self.model_dump(
            mode="json",
            exclude={"out_dir": True, "publish_dir": True, "log_dir": True, "training": silent},
        )

    @property
    def stop_file(self) -> Path:
        """While it is there, the workers stop after their step: it reaches those on other machines too."""
        return self.out_dir / "stop"


class Preempted(OutriderError):
    """Training was asked to stop, wrote a checkpoint and did. 75 is EX_TEMPFAIL: run the same command again."""

    exit_code = 75
