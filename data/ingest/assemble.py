"""Assembles the parts of an ingest into one `datasets` table.

Parts are read one batch at a time. `Dataset.save_to_disk` would map them into memory, and the
resident memory would grow with the log. The fingerprint is that of the content: a repeated ingest
gives the same bytes, so later stages are not rerun.

    assemble([Path("000000.arrow"), Path("000001.arrow")], Path("traffic/sequences"))
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import DatasetInfo, Features

from outrider.common.files import publish, write_json
from outrider.data.ingest.chunks import SCHEMA

SHARD_BYTES = 512 * 2**20


def assemble(parts: list[Path], sequences_dir: Path) -> None:
    """Publishes the table, rows in log order."""
    features = Features.from_arrow_schema(SCHEMA)
    schema = features.arrow_schema
    digest = hashlib.sha256()
    with publish(sequences_dir) as folder:
        folder.mkdir(mode=0o700)
        shards = list(_shards(parts))
        for number, shard in enumerate(shards):
            path = folder / f"data-{number:05d}-of-{len(shards):05d}.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as table:
                for part in shard:
                    for batch in _batches(part):
                        for column in batch.columns:
                            for buffer in filter(None, column.buffers()):
                                digest.update(buffer)
                        table.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        DatasetInfo(features=features).write_to_directory(str(folder))
        write_json(
            folder / "state.json",
            _state([path.name for path in sorted(folder.glob("*.arrow"))], digest),
        )
        for path in folder.iterdir():
            path.chmod(0o600)


def _shards(parts: list[Path]) -> Iterator[list[Path]]:
    shard: list[Path] = []
    size = 0
    for part in parts:
        if shard and size >= SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(part)
        size += part.stat().st_size
    yield shard


def _batches(part: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(part), "rb") as file, pa.ipc.open_stream(file) as table:
        yield from (batch for batch in table if batch.num_rows)


def _state(names: list[str], digest: Any) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
