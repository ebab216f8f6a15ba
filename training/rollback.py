"""Rollback of bad batches: a step with a NaN or a loss spike is undone and its batch left out.

    guard = Guard(config)                                # in every process
    guard.check(state, step, loss, gradient_norm, ids)   # raises BadBatch, in all processes alike
    rollbacks = Rollbacks(out_dir / "rollbacks.json", digest, config)
    rollbacks.add(bad, back_to=100, write=True)          # written before the run continues
    if step in rollbacks.steps: continue

The decision uses numbers that are reduced over all processes and taken from the first one, so all
processes decide alike. The list of rollbacks is next to the checkpoints: a run that is killed after
a rollback leaves out the same batches and ends with the same bits.
"""

import math
from pathlib import Path
from statistics import median
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.training.config import TrainingConfig

WINDOW = 32
"""Losses that a new one is compared with: enough for a steady median, few enough to follow the
descent."""

FEWEST = 8
"""Losses needed before a spike is detected: the first steps descend fast."""


class BadBatch(Exception):
    """A step that must be undone."""

    def __init__(self, step: int, reason: str, sequences: list[str]):
        super().__init__(f"step {step + 1}: {reason}")
        self.step, self.reason, self.sequences = step, reason, sequences


def why_bad(
    loss: float, gradient_norm: float, recent: list[float], spike_factor: float | None
) -> str | None:
    """The reason why a step is bad, or None.

    DeepSpeed reports a gradient with NaN or infinity as the norm -1.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(gradient_norm) or gradient_norm < 0:
        return "the gradient is not finite"
    if spike_factor is not None and len(recent) >= FEWEST and loss > spike_factor * median(recent):
        return (
            f"the loss {loss:.4f} is more than training.spike_factor={spike_factor:g} times the"
            f" median {median(recent):.4f}"
        )
    return None


class Guard:
    """Checks steps against recent losses, which are in the trainer's state as `recent_losses`."""

    def __init__(self, config: TrainingConfig):
        self.spike_factor = config.spike_factor

    def check(
        self,
        state: dict[str, Any],
        step: int,
        loss: float,
        gradient_norm: float,
        sequences: list[str],
    ) -> None:
        """Raises `BadBatch`, or adds the loss to the recent ones.

        `loss` and `gradient_norm` must be equal in all processes.
        """
        recent = state.setdefault("recent_losses", [])
        reason = why_bad(loss, gradient_norm, recent, self.spike_factor)
        if reason is not None:
            raise BadBatch(step, reason, sequences)
        recent.append(loss)
        del recent[:-WINDOW]


class Rollbacks:
    """The steps that were undone and are left out."""

    def __init__(self, path: Path, digest: str, config: TrainingConfig):
        self.path, self.digest, self.config = path, digest, config
        saved = read_json(path) if path.exists() else {}
        self.list: list[dict[str, Any]] = (
            saved["rollbacks"] if saved.get("digest") == digest else []
        )

    @property
    def steps(self) -> set[int]:
        """Steps (from 0) whose batch is left out."""
        return {each["step"] - 1 for each in self.list}

    def join(self, state: dict[str, Any]) -> None:
        """Merges the rollbacks in a checkpoint's state with these, in both."""
        known = self.steps
        self.list += [each for each in state.get("rollbacks", []) if each["step"] - 1 not in known]
        state["rollbacks"] = self.list

    def add(self, bad: BadBatch, back_to: int, write: bool) -> str:
        """Adds a rollback in every process, writes it in the first, and returns a line about it.

        Raises an `OutriderError` after more than `training.max_rollbacks`.
        """
        self.list.append(
            {
                "step": bad.step + 1,
                "reason": bad.reason,
                "back_to": back_to,
                "sequences": bad.sequences,
            }
        )
        if write:
            write_json(self.path, {"digest": self.digest, "rollbacks": self.list})
        if len(self.list) > self.config.max_rollbacks:
            raise OutriderError(self._too_many())
        return (
            f"{bad}; back to step {back_to}, its batch is left out (rollback {len(self.list)} of"
            f" training.max_rollbacks={self.config.max_rollbacks}). It held the sequences"
            f" {', '.join(bad.sequences)}"
        )

    def _too_many(self) -> str:
        steps = "; ".join(f"step {each['step']}: {each['reason']}" for each in self.list)
        common = set.intersection(*(set(each["sequences"]) for each in self.list))
        if common:
            names = ", ".join(sorted(common))
            advice = f"Every one of these batches held {names}: leave it out of the traffic"
        else:
            rate = f"{self.config.learning_rate:g}"
            advice = f"They share no sequence: lower training.learning_rate ({rate})"
        return (
            f"training: {len(self.list)} batches had to be undone, more than"
            f" training.max_rollbacks={self.config.max_rollbacks} ({steps}). {advice}, or raise"
            f" training.max_rollbacks. Their sequences are in {self.path}"
        )
