"""A function on many items as Ray tasks, a bounded number at a time.

    for index, part in run_tasks(make_part, chunks, shared=work, what="the ingest"):
        ...                                     # in the order in which tasks end

A task whose worker or node dies runs again on another one. An error of the function comes back as
from a child process (common/child_process.py): its message is never in Ray's logs, since it may
quote customer text. Ray must be connected (common/cluster/session.py).
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.common.child_process import answer_of, returned
from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from ray import ObjectRef

Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")

WAITING = 2
"""Tasks that wait for a free core, so that none is idle while results are fetched."""

RUNS = 4
"""How often a task is started whose worker dies."""


def run_tasks(
    function: Callable[[Shared, Item], Result],
    items: Iterable[Item],
    shared: Shared,
    what: str,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> Generator[tuple[int, Result], None, None]:
    """`function(shared, item)` of every item with its index, as tasks end.

    Close it (`contextlib.closing`) before the session ends; that cancels what still runs.
    `function` is found by name on the nodes. Items are drawn as tasks get free, so neither items
    nor results pile up. `cpus` and `gpus` are those of one task.

    Raises:
        OutriderError: the function's own, or a task whose workers were killed `RUNS` times.
        ChildError: any other error of the function.
    """
    import ray

    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RUNS - 1)(_answer)
    common = ray.put(shared)
    running: dict[ObjectRef, int] = {}
    try:
        for index, item in enumerate(items):
            while len(running) >= slots(cpus, gpus) + WAITING:
                yield from _ended(running, what)
            running[task.remote(function, common, item)] = index
        while running:
            yield from _ended(running, what)
    finally:
        for reference in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def slots(cpus: float = 1.0, gpus: float = 0.0) -> int:
    """How many such tasks the cluster runs at a time; at least one."""
    import ray

    there = ray.cluster_resources()
    by_cpu = there.get("CPU", 0.0) // cpus if cpus else float("inf")
    by_gpu = there.get("GPU", 0.0) // gpus if gpus else float("inf")
    return max(1, int(min(by_cpu, by_gpu, 10_000)))


def _ended(running: "dict[ObjectRef, int]", what: str) -> Iterator[tuple[int, Any]]:
    """Waits for the next tasks that end; their results."""
    import ray

    ended, _ = ray.wait(list(running), num_returns=1)
    for reference in ended:
        index = running.pop(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise OutriderError(
                f"{what}: a task ended {RUNS} times without a result ({type(error).__name__}),"
                " most often because a node ran out of memory; rerun the command to resume"
            ) from None
        yield index, returned(answer, f"a task of {what}")


def _answer(function: Callable[[Any, Any], Any], shared: Any, item: Any) -> bytes:
    return answer_of(lambda: function(shared, item))
