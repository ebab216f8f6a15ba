"""Writes training metrics to metrics.jsonl, to trackers and to the terminal.

    metrics = Metrics(accelerator, log_dir, project="outrider", config={...}, resumed_step=0)
    values = step_values(
        sums=sums, count_K=count_K, learning_rate=rate, gradient_norm=norm,
        tokens=tokens, slots=slots, seconds=seconds, waited=waited,
    )
    metrics.write(step, values)
    print(step_line(step, steps, values, seconds))

metrics.jsonl has one line per step. The accelerator's trackers get the same values; Weights &
Biases is offline without a key.
Shapes: K depths.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired

import torch
from accelerate import Accelerator
from pydantic import BaseModel
from torch import Tensor
from typing_extensions import TypedDict

from outrider.common.gpu_cards import card_named
from outrider.common.json_forms import Count, parse_form
from outrider.training.results import DraftVocabulary, Profile
from outrider.training.trackers import flat_settings


class _Line(BaseModel):
    """A line of metrics.jsonl; the other values depend on the step."""

    step: Count


class StepValues(TypedDict):
    """The metrics of a step."""

    loss: float
    kl: list[float]
    """By depth."""
    expected_acceptance: list[float]
    """By depth."""
    learning_rate: float
    gradient_norm: float
    tokens_per_s: float
    wait_share: float
    """Share of the time that was spent waiting for data."""
    padding_share: float
    mfu: NotRequired[float]
    """Model FLOPs utilization; absent where it is not known (`utilization`)."""


LARGE_SHARE = 0.05
"""Smallest share of waiting or padding that a step's line names."""

MOST_RATES = 4
"""Drafts whose rates a line shows. It fits into 120 columns."""


class Metrics:
    """The metrics of one run, written only by the main process."""

    def __init__(
        self,
        accelerator: Accelerator,
        log_dir: Path,
        project: str,
        config: dict[str, object],
        resumed_step: int,
    ):
        self.accelerator = accelerator
        self.path = log_dir / "metrics.jsonl"
        if accelerator.is_main_process:
            log_dir.mkdir(parents=True, exist_ok=True)
            self.forget_after(resumed_step)
        if accelerator.log_with:
            os.environ.setdefault("WANDB_SILENT", "true")
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
            mode = os.environ.get("WANDB_MODE", mode)
            accelerator.init_trackers(
                project, flat_settings(config), {"wandb": {"dir": str(log_dir), "mode": mode}}
            )

    def write(self, step: int, values: Mapping[str, object]) -> None:
        """Writes one step's values, which are numbers or lists of numbers."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        if self.accelerator.trackers:
            self.accelerator.log(_flat(values), step=step)

    def close(self) -> None:
        """Ends the trackers' runs. `accelerator.end_training` would end the process group too."""
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def forget_after(self, step: int) -> None:
        """Removes incomplete lines, and lines of later steps, which will run again.

        Trackers, by contrast, keep what they received.
        """
        if not self.accelerator.is_main_process:
            return
        self.path.touch()
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if step else []
        whole = (line for line in lines if line.endswith("}\n"))
        fix = "delete this line and rerun the command"
        earlier = [line for line in whole if parse_form(_Line, line, self.path, fix).step <= step]
        self.path.write_text("".join(earlier), encoding="utf-8")


def step_values(
    *,
    sums: Tensor,
    count_K: Tensor,
    learning_rate: float,
    gradient_norm: float,
    tokens: int,
    slots: int,
    seconds: float,
    waited: float,
) -> StepValues:
    """Returns the metrics of a step.

    `sums` [1 + 2K] has sums over all processes: the loss, then KL and expected acceptance by depth,
    over `count_K` targets. `tokens` is how many of the rows' `slots` hold data, and `waited` how
    many of the `seconds` were spent waiting for it.
    """
    kl_K, acceptance_K = (sums[1:].view(2, len(count_K)) / count_K.clamp_min(1)).tolist()
    return {
        "loss": sums[0].item(),
        "kl": kl_K,
        "expected_acceptance": acceptance_K,
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "tokens_per_s": tokens / seconds,
        "wait_share": waited / seconds,
        "padding_share": 1 - tokens / slots,
    }


def step_line(done: int, steps: int, values: StepValues, seconds: float) -> str:
    """Returns one readable line about step `done` of `steps`, which took `seconds`.

    Shares of time that were lost are named if they are large. metrics.jsonl has all values.
    """
    line = (
        f"step {done}/{steps}  loss {values['loss']:.2f}"
        f"  acceptance {_by_draft(values['expected_acceptance'])}"
        f"  {values['tokens_per_s']:.0f} tokens/s"
    )
    if values["wait_share"] >= LARGE_SHARE:
        line += f"  waiting {values['wait_share']:.0%}"
    if values["padding_share"] >= LARGE_SHARE:
        line += f"  padding {values['padding_share']:.0%}"
    if "mfu" in values:
        line += f"  MFU {values['mfu']:.0%}"
    return f"{line}  {(steps - done) * seconds / 60:.0f} min left"


def _by_draft(rates: Sequence[float]) -> str:
    """Returns the rates of the drafts in words; of many, those of the first and the last."""
    shown = [f"{rate:.2f}" for rate in rates]
    if len(shown) > MOST_RATES:
        shown = [shown[0], "...", shown[-1]]
    return f"{' '.join(shown)} (drafts 1-{len(rates)})"


def validation_line(done: int, steps: int, profile: Profile, seconds: float) -> str:
    """Returns one readable line about an evaluation."""
    length = profile["acceptance_length"]
    return (
        f"step {done}/{steps}  validation: acceptance {_by_draft(profile['acceptance'])}"
        f"  tokens per step {length[-1]:.3f}"
        f"  ({profile['sequences']} sequences, {seconds:.1f} s)"
    )


def export_line(base: Profile, trained: Profile, exported: Profile) -> str:
    """Returns one line about the export's effect on acceptance."""
    first, before, after = (
        profile["acceptance_length"][-1] for profile in (base, trained, exported)
    )
    acceptance = " ".join(f"{rate:.3f}" for rate in exported["acceptance"])
    return (
        f"exported: acceptance {acceptance}  acceptance length {after:.3f} at"
        f" K={len(exported['acceptance'])} ({after / before - 1:+.2%} against {before:.3f} before"
        f" export; {first:.3f} before training)"
    )


def vocabulary_line(vocabulary: DraftVocabulary) -> str:
    """Returns one line about a draft vocabulary."""
    covered = ", ".join(f"{share:.2%} of {part}" for part, share in vocabulary["coverage"].items())
    return f"draft vocabulary: {vocabulary['tokens']:,} tokens, covering {covered} response tokens"


def utilization(
    flops: float, seconds: float, device: torch.device, compute: str, processes: int
) -> float | None:
    """Returns model FLOPs utilization: a step's share of the GPUs' bf16 peak.

    None on a CPU, for unknown GPUs, and in float32.
    """
    if device.type != "cuda" or compute != "bf16":
        return None
    card = card_named(torch.cuda.get_device_name(device))
    # Model FLOPs utilization, as PaLM defines it (arXiv:2204.02311, appendix B).
    return None if card is None else flops / seconds / (card.flops * processes)


def _flat(values: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, list):
            flat |= {f"{name}/{position}": number for position, number in enumerate(value, start=1)}
        else:
            flat[name] = value
    return flat
