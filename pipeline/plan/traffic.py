"""Tokens and sequences of a run's traffic, and what length limits cut of it.

volume = traffic_volume(run, recipe)
volume.train, volume.heldout_sequences, volume.counted
"""

from pathlib import Path
from typing import NamedTuple

from outrider.common.files import read_json
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory

LOG_BYTES_PER_TOKEN = 6
"""Bytes of JSON per token of prompt and completion, roughly: text, field names, some token ids."""

COMPRESSED = (".gz", ".zst")
COMPRESSION_RATIO = 6
"""Bytes of a log per compressed byte, roughly."""


class Volume(NamedTuple):
    """Tokens of the log and of each part of the split."""

    log: int
    train: int
    validation: int
    heldout: int
    counted: bool
    """By the split or the ingest; else estimated from the size of the log."""

    @property
    def captured(self) -> int:
        """Tokens whose states are stored."""
        return self.train + self.validation + self.heldout


def traffic_volume(run: RunDirectory, recipe: Recipe) -> Volume:
    """Counted by the split, or by the ingest, or estimated from local logs; 0 if unknown."""
    ingested = run.result_of("ingest")
    if parts := run.result_of("split"):
        tokens = [parts[name]["tokens"] for name in ("train", "validation", "heldout")]
        log = ingested.get("prompt_tokens", 0) + ingested.get("completion_tokens", 0)
        return Volume(log or sum(tokens), tokens[0], tokens[1], tokens[2], counted=True)
    if ingested:
        log = ingested["prompt_tokens"] + ingested["completion_tokens"]
        return split_volume(recipe, log, ingested["exchanges"])
    paths = [recipe.traffic.path] if isinstance(recipe.traffic.path, str) else recipe.traffic.path
    files: list[Path] = []
    for path in (Path(path) for path in paths if "://" not in path):
        files += path.rglob("*") if path.is_dir() else [path]
    size = sum(
        file.stat().st_size * (COMPRESSION_RATIO if file.suffix in COMPRESSED else 1)
        for file in files
        if file.is_file()
    )
    return split_volume(recipe, size // LOG_BYTES_PER_TOKEN, None)


def split_volume(recipe: Recipe, tokens: int, sequences: int | None) -> Volume:
    """The split's fractions and limits on this many tokens and sequences.

    Limits are numbers of sequences, so they do not count where their number is unknown.
    """
    split = recipe.split
    shares = (
        (1 - split.validation_fraction - split.heldout_fraction, split.max_train_sequences),
        (split.validation_fraction, split.max_validation_sequences),
        (split.heldout_fraction, split.max_heldout_sequences),
    )
    train, validation, heldout = (
        int(tokens * min(share, limit / sequences if sequences and limit else 1))
        for share, limit in shares
    )
    return Volume(tokens, train, validation, heldout, counted=sequences is not None)


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
        return unsent_text(sum(start > room for start in starts), len(starts))
    ids = ids_of(parts) if stage == "capture" else [*parts["train"], *parts["validation"]]
    lengths, starts = _lengths(run, ids)
    found, kept = lengths_of(lengths, starts, engine.max_model_len)
    if stage == "train":
        captured = [min(lengths[row], found.limit) for row in kept]
        found = cut_at_rows(captured, [starts[row] for row in kept], recipe.training.row_tokens)
    return found.describe()


def _lengths(run: RunDirectory, ids: list[str]) -> tuple[list[int], list[int]]:
    """Tokens and completion starts of sequences."""
    import pyarrow.compute as pc

    from outrider.data.sequences import load_sequences

    columns = ["token_ids", "completion_start"]
    table = load_sequences(run.tables, ids).select_columns(columns).with_format("arrow")[:]
    lengths = pc.list_value_length(table.column("token_ids"))
    return lengths.to_pylist(), table.column("completion_start").to_pylist()
