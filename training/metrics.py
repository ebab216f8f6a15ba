"""One line a step in metrics.jsonl, always; and the same to Weights & Biases, offline unless a key is set.

metrics = Metrics(accelerator, log_dir, project="outrider", config={...}, resumed_step=0)
metrics.write(step, {"loss": 0.31})
"""

import json
import os
from pathlib import Path
from typing import Any

from accelerate import Accelerator


class Metrics:
    """Written by the main process alone."""

    def __init__(
        self,
        accelerator: Accelerator,
        log_dir: Path,
        project: str | None,
        config: dict[str, Any],
        resumed_step: int,
    ):
        self.accelerator = accelerator
        self.path = log_dir / "metrics.jsonl"
        self.tracked = project is not None
        if accelerator.is_main_process:
            log_dir.mkdir(parents=True, exist_ok=True)
        self.forget_after(resumed_step)
        if project is not None:
            os.environ.setdefault("WANDB_SILENT", "true")
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
            mode = os.environ.get("WANDB_MODE", mode)
            accelerator.init_trackers(
                project, config, {"wandb": {"dir": str(log_dir), "mode": mode}}
            )

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Numbers and lists of numbers of one step."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step} | values) + "\n")
        if self.tracked:
            self.accelerator.log(_flat(values), step=step)

    def close(self) -> None:
        """Ends the tracker's run and its process; `accelerator.end_training` would end the process group as well."""
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def forget_after(self, step: int) -> None:
        """Steps behind the checkpoint are about to run again; a line that a kill cut short goes as well. The tracker keeps the
        first value that it was given for a step."""
        if self.accelerator.is_main_process and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [
                line for line in lines if line.endswith("}\n") and json.loads(line)["step"] <= step
            ]
            self.path.write_text("".join(kept) if step else "", encoding="utf-8")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        if isinstance(value, list):
            flat |= {f"{name}/{position}": each for position, each in enumerate(value, start=1)}
        else:
            flat[name] = value
    return flat
