"""The parts of an ingest, made by Ray tasks instead of the process pool.

    count = make_parts_on(ClusterConfig(address="auto"), chunks_of(records), work, chunk_is_done)

The command cuts the log into chunks and writes the parts; nodes need the target, not the log or the
run directory. A part depends on its chunk alone, so its bytes are those of the process pool.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import run_tasks
from outrider.data.ingest.chunks import Chunk, make_part, part_path


def make_parts_on(
    cluster: ClusterConfig,
    chunks: Iterable[Chunk],
    work: tuple[Any, ...],
    chunk_is_done: Callable[[int], None],
) -> int:
    """Makes the part of every chunk that has none; returns the number of chunks.

    `work`: arguments of `ChunkWork`, of which the last is the folder of the parts.
    `chunk_is_done` is called with the number of records of each finished chunk.
    """
    parts_dir = work[-1]
    count = 0
    sent: list[tuple[int, int]] = []
    """Number and records of each chunk that became a task."""

    def missing() -> Iterator[Chunk]:
        nonlocal count
        for chunk in chunks:
            count += 1
            if part_path(parts_dir, chunk.number).exists():
                chunk_is_done(len(chunk.items))
            else:
                sent.append((chunk.number, len(chunk.items)))
                yield chunk

    with (
        open_cluster(cluster),
        contextlib.closing(run_tasks(make_part, missing(), work, what="the ingest")) as parts,
    ):
        for index, part in parts:
            number, records = sent[index]
            part.write(parts_dir, number)
            chunk_is_done(records)
    return count
