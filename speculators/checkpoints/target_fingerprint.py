"""Fingerprints of targets, which distinguish R1 from R1-0528 despite their equal shapes.

    target_fingerprint(target_dir)                    # None for an incomplete target
    check_bundle_target(manifest, bundle, target_dir)        # raises for another target

A fingerprint covers config.json, tokenizer.json, and the name, the size and 64 KiB at each end of
every weight file: 21 MB of R1's 671 GB. It misses changes in the middle of files and in the chat
template. A resharded or requantized copy counts as a different target.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import path_digest, sampled_digest, value_digest
from outrider.common.json_forms import read_object
from outrider.speculators.checkpoints.layout import read_layout

KEY = "target_fingerprint"
"""Key in bundle.json; its value is null if the target was not available."""

# Keys that transformers rewrites when it saves a model, without a change of what is computed.
_VOLATILE = ("_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version")
_SAMPLED = 2**16


@functools.lru_cache
def target_fingerprint(directory: Path) -> str | None:
    """SHA-256 of the target; None for a partial checkpoint or a speculator."""
    layout = read_layout(directory)
    files = [directory / name for name in sorted(set(layout.weight_map.values()))]
    last = f"model.layers.{int(layout.config.get('num_hidden_layers', 1)) - 1}."
    # A speculator's directory, and a target of which only the needed shards were copied, lack
    # these.
    whole = layout.embedding_and_head[0] in layout.weight_map and any(
        name.startswith(last) for name in layout.weight_map
    )
    if not whole or not all(file.is_file() for file in files):
        return None
    return value_digest(
        {
            "config": {k: value for k, value in layout.config.items() if k not in _VOLATILE},
            "tokenizer": path_digest(directory / "tokenizer.json"),
            "weights": sampled_digest(files, _SAMPLED),
        }
    )


class _Target(BaseModel):
    model: str | None = None


class _Bundle(BaseModel):
    """Keys of bundle.json that are read before the kind is known."""

    method: str | None = None
    target: _Target | None = None
    target_fingerprint: str | None = None


def read_bundle(path: Path) -> dict[str, Any]:
    """Reads a bundle.json; raises an `OutriderError` for values of other types."""
    manifest: dict[str, Any] = read_object(_Bundle, path, "export the bundle again")
    return manifest


def check_bundle_target(manifest: Mapping[str, Any], bundle: Path | str, target_dir: Path) -> None:
    """Raises an `OutriderError` if the bundle was made for another target.

    Does nothing if either fingerprint is unknown.
    """
    expected = manifest.get(KEY)
    fingerprint = target_fingerprint(target_dir)
    if expected is None or fingerprint is None or expected == fingerprint:
        return
    name = (manifest.get("target") or {}).get("model")
    raise OutriderError(
        f"{bundle}: made for target {name} ({str(expected)[:12]}), but {target_dir} is another"
        f" one ({fingerprint[:12]}): its config.json, tokenizer.json or weights differ; serve the"
        " target that the bundle was made for, or train and export again with target.model"
        " set to this one"
    )
