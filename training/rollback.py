"""Rollback of bad batches: a step with a NaN or a loss spike is undone and its batch left out.

    check_step(state, step, loss, gradient_norm, ids)    # raises BadBatch, in all processes alike
    rollbacks = Rollbacks(out_dir / "rollbacks.json", digest, learning_rate)
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

WINDOW = 32
"""Losses that a new one is compared with: enough for a steady median, few enough to follow the
descent."""

FEWEST = 8
"""Losses needed before a spike is detected: the first steps descend fast."""


SPIKE = 5.0
"""Largest accepted loss, as a multiple of the median of the last `WINDOW` steps. On nano R1's
résumés no step exceeded 1.15 times the median."""

MOST = 5
"""Batches that may be left out in one run."""


class BadBatch(Exception):
    """A step that must be undone."""

    def __init__(self, step: int, reason: str, sequences: list[str]):
        super().__init__(f"step {step + 1}: {reason}")
        self.step, self.reason, self.sequences = step, reason, sequences


def why_bad(loss: float, gradient_norm: float, recent: list[float]) -> str | None:
    """The reason why a step is bad, or None.

    DeepSpeed reports a gradient with NaN or infinity as the norm -1.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(gradient_norm) or gradient_norm < 0:
        return "the gradient is not finite"
    if len(recent) >= FEWEST and loss > SPIKE * median(recent):
        return f"the loss {loss:.4f} is more than {SPIKE:g} times the median {median(recent):.4f}"
    return None


def check_step(
    state: dict[str, Any], step: int, loss: float, gradient_norm: float, sequences: list[str]
) -> None:
    """Raises `BadBatch`, or adds the loss to the trainer's `recent_losses`.

    `loss` and `gradient_norm` must be equal in all processes.
    """
    recent = state.setdefault("recent_losses", [])
    if reason := why_bad(loss, gradient_norm, recent):
        raise BadBatch(step, reason, sequences)
    recent.append(loss)
    del recent[:-WINDOW]


class Rollbacks:
    """The steps that were undone and are left out."""

    def __init__(self, path: Path, digest: str, learning_rate: float):
        self.path, self.digest, self.learning_rate = path, digest, learning_rate
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

        Raises an `OutriderError` after more than `MOST`.
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
        if len(self.list) > MOST:
            raise OutriderError(self._too_many())
        return (
            f"{bad}; back to step {back_to}, its batch is left out (rollback {len(self.list)} of at"
            f" most {MOST}). It held the sequences {', '.join(bad.sequences)}"
        )

    def _too_many(self) -> str:
        steps = "; ".join(f"step {each['step']}: {each['reason']}" for each in self.list)
        common = set.intersection(*(set(each["sequences"]) for each in self.list))
        if common:
            names = ", ".join(sorted(common))
            advice = f"Every one of these batches held {names}: leave it out of the traffic"
        else:
            rate = f"training.learning_rate ({self.learning_rate:g})"
            advice = f"They share no sequence: lower {rate}"
        return (
            f"training: {len(self.list)} batches had to be undone, at most {MOST} may be ({steps})."
            f" {advice}. Their sequences are in {self.path}"
        )
