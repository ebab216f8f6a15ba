"""Checks of speculator files, shared by several drafter kinds. No torch.

Each check raises an `OutriderError` with file, key, value and fix.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.safetensors_headers import (
    TensorHeader,
    is_finite,
    rows_that_differ,
)


def check_vocabulary_size(path: Path, config: Mapping[str, Any], target: CheckpointLayout) -> None:
    """Checks that a speculator's vocabulary has the target's size."""
    vocabulary = target.config["vocab_size"]
    if config.get("vocab_size") != vocabulary:
        raise OutriderError(
            f"{path}: vocab_size = {config.get('vocab_size')}, but the target's is {vocabulary}"
            f" ({target.directory / 'config.json'}): a stale vocabulary, whose token ids have other"
            " meanings; train the speculator again for this target, or set target.model to the one"
            " that it was trained for"
        )


def check_same_rows(header: TensorHeader, original: TensorHeader) -> None:
    """Checks that a copy of the target's embedding or head equals the original.

    The engine replaces the copy with the target's tensor, so a speculator that was trained with
    different values drafts nonsense.
    """
    if header.shape != original.shape:
        shape = list(original.shape)
        difference = f"has shape {list(header.shape)}, the target's {original.name} {shape}"
    else:
        rows = rows_that_differ(header, original)
        if not rows:
            return
        total = header.shape[0]
        difference = f"differs in {rows} of {total} rows from the target's {original.name}"
    raise OutriderError(
        f"{header.file}: {header.name} {difference}: a stale vocabulary. The speculator was"
        f" trained for another vocabulary or revision of the target than {original.file.parent};"
        " set target.model to the one that it was trained for, or train again"
    )


def check_finite(headers: Mapping[str, TensorHeader]) -> None:
    """Checks that no tensor contains an infinity or NaN."""
    broken = [name for name, header in headers.items() if not is_finite(header)]
    if broken:
        raise OutriderError(
            f"{headers[broken[0]].file}: not a finite number in {first_names(sorted(broken))}; the"
            " checkpoint is damaged, or its training diverged: use an earlier checkpoint, or"
            " export it again"
        )


def check_header_shape(
    headers: Mapping[str, TensorHeader],
    suffix: str,
    shape: tuple[int, ...],
    config: Path,
    in_words: str,
) -> TensorHeader:
    """Checks the presence and shape of tensor `suffix`; returns its header."""
    header = header_named(headers, suffix)
    if header is None:
        raise OutriderError(
            f"{config.parent}: no tensor {suffix}, which {in_words} needs; its tensors are"
            f" {first_names(sorted(headers))}"
        )
    if math.prod(header.shape) != math.prod(shape) or header.shape[0] != shape[0]:
        raise OutriderError(
            f"{header.file}: {header.name} has shape {list(header.shape)}, but {config} and the"
            f" target require {list(shape)}; the weights and the configuration belong to different"
            " models"
        )
    return header


def check_names(where: object, names: Collection[str], expected: Collection[str]) -> None:
    """Checks that the tensor names are exactly the expected ones."""
    missing = sorted(set(expected) - set(names))
    unexpected = sorted(set(names) - set(expected))
    parts = [f"missing: {first_names(missing)}"] if missing else []
    parts += [f"unexpected: {first_names(unexpected)}"] if unexpected else []
    if parts:
        raise OutriderError(
            f"{where}: the tensors do not match config.json; {'; '.join(parts)}; the checkpoint is"
            " incomplete or belongs to another model: export it again, or use one for this target"
        )


def header_named(headers: Mapping[str, TensorHeader], suffix: str) -> TensorHeader | None:
    """The first header whose name is `suffix` or ends with it."""
    for name, header in headers.items():
        if name == suffix or name.endswith("." + suffix):
            return header
    return None


def wrong_target_error(
    path: Path, key: str, value: Any, target: CheckpointLayout, expected: Any
) -> OutriderError:
    """The error for a speculator that was made for another model."""
    return OutriderError(
        f"{path}: {key} = {value}, but the target has {expected}"
        f" ({target.directory / 'config.json'}): the speculator belongs to another model. Use"
        " one that was trained for this target, or set target.model to its target"
    )


def first_names(names: list[str]) -> str:
    """Up to five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
