"""The parts of an ingest: in this process, by worker processes, or by Ray tasks.

    count = make_parts(chunks_of(records), work, parts_dir, workers=8, cluster=None, done=print)

This process cuts the log into chunks and writes the parts. A part depends on its chunk alone, so
its bytes are the same whoever makes it; nodes of a cluster need the target, not the log.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import run_tasks
from outrider.common.errors import OutriderError
from outrider.data.ingest.chunks import (
    Chunk,
    ChunkWork,
    Part,
    Work,
    make_part,
    part_path,
    start_worker,
)


def make_parts(
    chunks: Iterable[Chunk],
    work: Work,
    parts_dir: Path,
    workers: int,
    cluster: ClusterConfig | None,
    done: Callable[[int], None],
) -> int:
    """Makes the part of every chunk that has none; returns the number of chunks.

    `workers` processes do it, or this one for 0, or the tasks of a `cluster`. `done` is called with
    the number of records of each finished chunk.
    """
    count = 0

    def missing() -> Iterator[Chunk]:
        nonlocal count
        for chunk in chunks:
            count += 1
            if part_path(parts_dir, chunk.number).exists():
                done(len(chunk.items))
            else:
                yield chunk

    if cluster:
        made = _by_tasks(missing(), work, cluster)
    elif workers:
        made = _by_processes(missing(), work, workers)
    else:
        made = map(ChunkWork(work).make, missing())
    for part in made:
        part.write(parts_dir)
        done(part.records)
    return count


def _by_tasks(chunks: Iterable[Chunk], work: Work, cluster: ClusterConfig) -> Iterator[Part]:
    with (
        open_cluster(cluster),
        contextlib.closing(run_tasks(make_part, chunks, work, what="the ingest")) as parts,
    ):
        for _, part in parts:
            yield part


def _by_processes(chunks: Iterable[Chunk], work: Work, workers: int) -> Iterator[Part]:
    # Workers are spawned, since this process has threads.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker)
    running: set[Future[Part]] = set()

    def ended(most_running: int) -> Iterator[Part]:
        while len(running) > most_running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                yield future.result()

    try:
        for chunk in chunks:
            yield from ended(workers)  # one more waits for the first that ends
            running.add(pool.submit(make_part, work, chunk))
        yield from ended(0)
    except BrokenProcessPool:
        raise OutriderError(
            "a worker of the ingest was killed, most often because the machine ran out of memory; "
            "rerun the command to continue with the unfinished parts"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
