"""Joins feature stores into one, without copying or capturing states again.

    join_stores([window_3 / "features", window_4 / "features"], ids, out_dir)

Shards become hard links, or copies where the file system has none; the new manifest lists the
sequences that are wanted. The stores must hold the same streams in the same type.
"""

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.data.features.feature_store import MANIFEST, FeatureStore

SAME = ("version", "hidden_size", "features", "dtype", "score_columns")
"""Keys of the manifest that must agree."""


def join_stores(directories: Sequence[Path], wanted: Collection[str], out_dir: Path) -> None:
    """Publishes a store with the sequences of `wanted`.

    An `OutriderError` where stores differ in form, or one of `wanted` is in none of them.
    """
    stores = [FeatureStore.open(directory) for directory in directories]
    first = stores[0].manifest
    for store in stores[1:]:
        for key in SAME:
            if store.manifest.get(key) != first.get(key):
                raise OutriderError(
                    f"{store.directory / MANIFEST}: {key} differs from that of"
                    f" {stores[0].directory}; capture both with the same recipe"
                )
    missing = set(wanted)
    shards: list[dict[str, Any]] = []
    sequences: list[dict[str, Any]] = []
    with publish(out_dir) as folder:
        folder.mkdir(mode=0o700)
        for store in stores:
            rows = [row for row in store.manifest["sequences"] if row["id"] in missing]
            missing -= {row["id"] for row in rows}
            place: dict[int, int] = {}
            for number in sorted({row["shard"] for row in rows}):
                place[number] = len(shards)
                shard = store.manifest["shards"][number]
                name = f"shard-{len(shards):05d}.safetensors"
                _link(store.directory / shard["file"], folder / name)
                shards.append({**shard, "file": name})
            sequences += [{**row, "shard": place[row["shard"]]} for row in rows]
        if missing:
            raise OutriderError(
                f"{directories[0]} and {len(directories) - 1} more: no states of"
                f" {len(missing)} sequences (first {min(missing)}); capture them first"
            )
        source = {"joined": [store.manifest["source"] for store in stores]}
        header = {key: first[key] for key in SAME if key in first}
        manifest = {**header, "source": source, "shards": shards, "sequences": sequences}
        write_json(folder / MANIFEST, manifest, private=True)


def _link(source: Path, destination: Path) -> None:
    """States of R1 take terabytes, so a copy is the last resort."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)
