"""Disk and time of capture and training, from the number of tokens in the traffic.

    tokens, counted = traffic_tokens(run, recipe)
    print(capture_cost(tokens, recipe, target_config))

Times are tokens over a rate: `capture.tokens_per_s` and `training.tokens_per_s` of the recipe, else
the measured rate of the embedded target on 2 cores. Any other target gets no time.
"""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.data.config import bytes_per_token
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.planned import stored_features, warms_up

LOG_BYTES_PER_TOKEN = 6
"""Bytes of JSON per token of prompt and completion, roughly: text, field names, some token ids."""

ZSTD_RATIO = 6
"""Bytes of a log per byte under zstd, roughly. A zstd file does not end with its size."""

CAPTURE_TOKENS_PER_S = 5500
"""Prefill of the embedded target on 2 cores."""

TRAIN_TOKENS_PER_S = 4000
"""Forward and backward of the embedded target at depth 5, 2 processes on 2 cores."""


@dataclasses.dataclass(frozen=True)
class CaptureCost:
    """Disk and time of the hidden states of some tokens."""

    tokens: int
    hidden_size: int
    bytes_per_token: int
    tokens_per_s: float | None
    """Assumed rate; None where none is known, and then there is no time."""

    @property
    def bytes(self) -> int:
        """Size of the states on disk."""
        return self.tokens * self.bytes_per_token

    @property
    def seconds(self) -> int | None:
        """Time of the capture."""
        return None if self.tokens_per_s is None else round(self.tokens / self.tokens_per_s)

    def __str__(self) -> str:
        size = f"{bytes_text(self.bytes)} of states"
        size += f" ({self.tokens:,} tokens x {self.bytes_per_token:,} bytes)"
        return size + time_text(self.seconds, self.tokens_per_s)


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Time of training on some tokens, over all epochs."""

    tokens: int
    epochs: int
    tokens_per_s: float | None
    """As in `CaptureCost`."""

    @property
    def seconds(self) -> int | None:
        """Time of the training."""
        return None if self.tokens_per_s is None else round(self.tokens / self.tokens_per_s)


def capture_cost(tokens: int, recipe: Recipe, target_config: Mapping[str, Any]) -> CaptureCost:
    """Disk and time of capturing `tokens` tokens with the states that the speculators read."""
    rate = recipe.capture.tokens_per_s or _measured(recipe, CAPTURE_TOKENS_PER_S)
    spec = stored_features(recipe.speculator, target_config)
    each = bytes_per_token(spec.width, recipe.capture.dtype, len(spec.streams))
    return CaptureCost(tokens, target_config["hidden_size"], each, rate)


def training_cost(
    tokens: int, recipe: Recipe, target_config: Mapping[str, Any] | None
) -> TrainingCost:
    """Time of training on the training part of `tokens` tokens; the target may be unknown."""
    warm = warms_up(recipe.speculator, target_config)
    epochs = recipe.training.started(warm).epochs
    share = 1 - recipe.split.validation_fraction - recipe.split.heldout_fraction
    rate = recipe.training.tokens_per_s or _measured(recipe, TRAIN_TOKENS_PER_S)
    return TrainingCost(int(tokens * share * epochs), epochs, rate)


def traffic_tokens(run: RunDirectory, recipe: Recipe) -> tuple[int, bool]:
    """Tokens that are captured, and whether they were counted or estimated.

    Counted by the split, or before it by the ingest (all tokens of the log). The estimate comes
    from the size of local logs; 0 when nothing is known.
    """
    if parts := run.result_of("split"):
        counts = [part["tokens"] for part in parts.values() if "tokens" in part]
        return sum(counts), True
    if result := run.result_of("ingest"):
        return result["prompt_tokens"] + result["completion_tokens"], True
    paths = [recipe.traffic.path] if isinstance(recipe.traffic.path, str) else recipe.traffic.path
    files: list[Path] = []
    for path in (Path(path) for path in paths if "://" not in path):
        files += path.rglob("*") if path.is_dir() else [path]
    size = sum(_text_bytes(file) for file in files if file.is_file())
    return size // LOG_BYTES_PER_TOKEN, False


def lost_ends_text(stage: str, run: RunDirectory, recipe: Recipe) -> str:
    """What a stage would cut or not send, once the split is known; else empty."""
    if not (run.split / "parts.json").exists() or not run.result_of("split"):
        return ""
    from outrider.data.features.lengths import lengths_of
    from outrider.data.split.split import ids_of
    from outrider.eval.bench.prompts import prompt_room, unsent_text
    from outrider.training.packing import cut_at_rows

    parts, engine = read_json(run.split / "parts.json"), recipe.serving.engine
    if stage == "evaluate":
        _, starts = _lengths(run, parts["heldout"])
        room = prompt_room(recipe.eval, recipe.serving)
        text = unsent_text(sum(start > room for start in starts), len(starts))
        return f"; {text}" if text else ""
    ids = ids_of(parts) if stage == "capture" else [*parts["train"], *parts["validation"]]
    lengths, starts = _lengths(run, ids)
    found, kept = lengths_of(lengths, starts, engine.max_model_len, recipe.capture.too_long)
    if stage == "train":
        captured = [min(lengths[row], found.limit) for row in kept]
        found = cut_at_rows(captured, [starts[row] for row in kept], recipe.training.row_tokens)
    elif recipe.capture.too_long == "fail" and found.dropped:
        return f"; {found.dropped:,} sequences exceed {found.limit:,} tokens: the run would stop"
    return f"; {found.describe()}" if found.describe() else ""


def _lengths(run: RunDirectory, ids: list[str]) -> tuple[list[int], list[int]]:
    """Tokens and completion starts of sequences."""
    import pyarrow.compute as pc

    from outrider.data.sequences import load_sequences

    columns = ["token_ids", "completion_start"]
    table = load_sequences(run.tables, ids).select_columns(columns).with_format("arrow")[:]
    lengths = pc.list_value_length(table.column("token_ids"))
    return lengths.to_pylist(), table.column("completion_start").to_pylist()


def bytes_text(count: float) -> str:
    """Bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds as minutes, or as hours from three hours on."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 180 else f"{minutes / 60:.1f} h"


def time_text(seconds: float | None, rate: float | None) -> str:
    """`, about 3 min at 5,500 tokens/s`; empty where no rate is known."""
    if seconds is None or rate is None:
        return ""
    return f", about {duration(seconds)} at {rate:,g} tokens/s"


def _measured(recipe: Recipe, rate: int) -> int | None:
    return rate if recipe.target.model in EMBEDDED_TARGETS else None


def _text_bytes(file: Path) -> int:
    size = file.stat().st_size
    if file.suffix == ".zst":
        return size * ZSTD_RATIO
    if file.suffix != ".gz" or size < 18:
        return size
    with file.open("rb") as compressed:
        compressed.seek(-4, 2)  # a gzip member ends with its length modulo 2^32
        (length,) = struct.unpack("<I", compressed.read(4))
    return int(length)
