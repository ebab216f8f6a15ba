"""What a run would do and cost, before it does anything: `train-speculator --recipe R --dry-run`.

Tokens come from the ingested table where it is there, else from the size of the log. Times are tokens over stated rates: the
recipe's `capture.tokens_per_s` and `training.tokens_per_s`, else those seen with the embedded target on 2 cores; for another target
they are left out rather than guessed. What training takes beside time is in price.py.

    for row in plan(run, recipe, ["train"], {}): print(row.stage, row.action, row.cost)
"""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.data.config import bytes_per_token
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.preflight import has_weights, local_target
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options
from outrider.recipes.pipeline.stages.registry import STAGES
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.kinds import trainable_kind

LOG_BYTES_PER_TOKEN = 6
"""JSON text of a log per token of prompt and completion, roughly: text, field names and partly token ids."""

ZSTD_RATIO = 6
"""Bytes of a log per byte of it under zstd, roughly: unlike gzip's, its end does not tell."""

CAPTURE_TOKENS_PER_S = 5500
"""Prefill of the embedded target on 2 cores."""

TRAIN_TOKENS_PER_S = 4000
"""Training at depth 5 with 2 processes on 2 cores, forward and backward, embedded target."""

ENGINE_START_S = {"eager": 35, "compiled": 90}
"""Start of the two servers of a mode, side by side on 2 cores."""

ONE_START_S = 20
"""Start of one eager engine there."""


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """One row of the plan."""

    stage: str
    action: str
    cost: str


@dataclasses.dataclass(frozen=True)
class CaptureCost:
    """Disk and time of the hidden states of some tokens."""

    tokens: int
    hidden_size: int
    bytes_per_token: int
    tokens_per_s: float | None
    """The rate that the time assumes; None for a target that no rate is known for, and so no time."""

    @property
    def bytes(self) -> int:
        return self.tokens * self.bytes_per_token

    @property
    def seconds(self) -> int | None:
        return None if self.tokens_per_s is None else round(self.tokens / self.tokens_per_s)

    def __str__(self) -> str:
        size = f"{bytes_text(self.bytes)} of states ({self.tokens:,} tokens x {self.bytes_per_token:,} bytes)"
        return size + (_time(self.seconds, self.tokens_per_s) if self.tokens_per_s else "")


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Time of training on some tokens, over all epochs."""

    tokens: int
    epochs: int
    tokens_per_s: float | None
    """As of `CaptureCost`."""

    @property
    def seconds(self) -> int | None:
        return None if self.tokens_per_s is None else round(self.tokens / self.tokens_per_s)


def capture_cost(tokens: int, recipe: Recipe, target_config: Mapping[str, Any]) -> CaptureCost:
    """Disk and time of capturing `tokens` tokens with the states that the speculator reads."""
    rate = recipe.capture.tokens_per_s or _known(recipe, CAPTURE_TOKENS_PER_S)
    hidden_size = target_config["hidden_size"]
    spec = trainable_kind(recipe.speculator.kind).features(target_config).stored(hidden_size)
    each = bytes_per_token(spec.width, recipe.capture.dtype, len(spec.streams))
    return CaptureCost(tokens, hidden_size, each, rate)


def training_cost(tokens: int, recipe: Recipe) -> TrainingCost:
    """What it takes to train on the training part of so many tokens."""
    epochs = recipe.training.epochs
    share = 1 - recipe.split.validation_fraction - recipe.split.heldout_fraction
    rate = recipe.training.tokens_per_s or _known(recipe, TRAIN_TOKENS_PER_S)
    return TrainingCost(int(tokens * share * epochs), epochs, rate)


def _known(recipe: Recipe, rate: int) -> int | None:
    return rate if recipe.target.model in EMBEDDED_TARGETS else None


def plan(
    run: RunDirectory, recipe: Recipe, wanted: list[str], options: Options
) -> list[PlannedStage]:
    """What each wanted stage would do now, in order."""
    target = local_target(recipe)
    # Without them no stage's state is asked: of a hub's model that would start the download.
    weights = target is not None and has_weights(target)
    rows, will_run = [], set()
    for name in wanted:
        stage = STAGES[name]
        after = [needed for needed in stage.needs if needed in will_run]
        if after:
            action = f"would run after {', '.join(after)}"
        elif target is None:
            action = "would run; the target is not on this machine yet and would be downloaded"
        elif not weights:
            action = "would run; the target's weights are not on this machine yet"
        else:
            state = stage.state(run, recipe, options)
            action = (
                "nothing changed, would be kept"
                if state.done
                else f"would run: {'; '.join(state.reasons)}"
            )
        if after or not weights or not action.startswith("nothing"):
            will_run.add(name)
            cost = _cost(name, run, recipe, target)
        else:
            cost = ""
        rows.append(PlannedStage(name, action, cost))
    return rows


def _cost(stage: str, run: RunDirectory, recipe: Recipe, target: Path | None) -> str:
    tokens, known = traffic_tokens(run, recipe)
    rated = recipe.target.model in EMBEDDED_TARGETS
    about = "" if known else "about "
    if stage == "ingest":
        return f"{about}{tokens:,} tokens" if tokens else "size of the log unknown"
    if stage == "capture":
        if not tokens or not target:
            return "tokens x hidden size x 2 bytes of states"
        return f"{about}{capture_cost(tokens, recipe, read_json(target / 'config.json'))}"
    if stage == "train":
        training = training_cost(tokens, recipe)
        epochs = f"{training.epochs} epoch{'s' if training.epochs > 1 else ''} at depth {recipe.speculator.depth}"
        cost = f"one engine start for parity, {epochs}"
        return cost + (
            _time(training.seconds, training.tokens_per_s)
            if tokens and training.tokens_per_s
            else ""
        )
    if stage == "evaluate":
        modes, measured = recipe.eval.engine_modes, recipe.eval
        blocks = len(modes) * len(measured.concurrency) * measured.repeats * 3
        # Beside the servers, an engine that captures the verification pass, and one that times steps where k is to be chosen.
        starts = sum(ENGINE_START_S[mode] for mode in modes) + ONE_START_S * (
            1 + (measured.k == "auto")
        )
        cost = f"{blocks} measured blocks in {' and '.join(modes)} mode"
        if measured.rates:
            timed = (
                len(modes)
                * len(measured.rates)
                * max(len(measured.scenarios), 1)
                * measured.rate_repeats
                * 3
            )
            cost += f", {timed} of open loop, at least {timed * measured.rate_seconds / 60:.0f} min"
        return cost + (f", {starts} s of engine starts beside them" if rated else "")
    if stage == "export":
        return "one engine start to verify the bundle" if recipe.export.verify else "unverified"
    return ""


def traffic_tokens(run: RunDirectory, recipe: Recipe) -> tuple[int, bool]:
    """Tokens of the traffic, and whether they were counted or estimated; 0 when nothing is known."""
    record = run.read_record("ingest")
    if record:
        return record["result"]["prompt_tokens"] + record["result"]["completion_tokens"], True
    paths = [recipe.traffic.path] if isinstance(recipe.traffic.path, str) else recipe.traffic.path
    files: list[Path] = []
    for path in map(Path, (p for p in paths if "://" not in p)):
        files += (
            [child for child in path.rglob("*") if child.is_file()] if path.is_dir() else [path]
        )
    return sum(_text_bytes(file) for file in files if file.is_file()) // LOG_BYTES_PER_TOKEN, False


def _text_bytes(file: Path) -> int:
    if file.suffix == ".zst":
        return file.stat().st_size * ZSTD_RATIO
    if file.suffix != ".gz" or file.stat().st_size < 18:
        return file.stat().st_size
    with file.open("rb") as compressed:
        compressed.seek(-4, 2)  # a gzip member ends with its length modulo 2^32
        return struct.unpack("<I", compressed.read(4))[0]


def bytes_text(count: float) -> str:
    """With three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """In minutes, or in hours from three of them on."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 180 else f"{minutes / 60:.1f} h"


def _time(seconds: float, rate: float) -> str:
    return f", about {duration(seconds)} at {rate:,g} tokens/s"
