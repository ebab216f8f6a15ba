"""Runs a function on several items as Ray tasks.

    sums = run_tasks(replay_shard, shards, shared=settings, what="exact replay")

A task whose worker or node dies is rerun on another one. Errors of the function are returned the
way a child process returns them (common/child_process.py), so that Ray never logs their messages,
which may quote customer text. Ray must be connected (common/cluster/session.py).
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from outrider.common.child_process import pickle_answer, unpickle_answer
from outrider.common.errors import OutriderError

Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")

RUNS = 4
"""Maximum number of times that a task is started if its workers die."""


def run_tasks(
    function: Callable[[Shared, Item], Result],
    items: Sequence[Item],
    shared: Shared,
    what: str,
    *,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> list[Result]:
    """Computes `function(shared, item)` for every item, in parallel as resources allow.

    The nodes import `function` by name. `cpus` and `gpus` are per task. After an error or Ctrl-C,
    the other tasks are cancelled.

    Raises:
        OutriderError: the function raised it, or the workers of a task were killed `RUNS` times.
        ChildError: any other error of the function.
    """
    import ray

    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RUNS - 1)(_answer)
    common = ray.put(shared)
    running = [task.remote(function, common, item) for item in items]
    try:
        return [unpickle_answer(ray.get(reference), f"a task of {what}") for reference in running]
    except ray.exceptions.RayError as error:
        raise OutriderError(
            f"{what}: a task ended {RUNS} times without a result ({type(error).__name__}),"
            " most often because a node ran out of memory; rerun the command to resume"
        ) from None
    finally:
        for reference in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def has_gpus() -> bool:
    """Whether a node of the cluster has a GPU."""
    import ray

    return bool(ray.cluster_resources().get("GPU", 0.0) >= 1)


def slots(cpus: float = 1.0, gpus: float = 0.0) -> int:
    """How many tasks of this size can run concurrently, at least 1."""
    import ray

    there = ray.cluster_resources()
    by_cpu = there.get("CPU", 0.0) // cpus if cpus else float("inf")
    by_gpu = there.get("GPU", 0.0) // gpus if gpus else float("inf")
    return max(1, int(min(by_cpu, by_gpu, 10_000)))


def _answer(function: Callable[[Any, Any], Any], shared: Any, item: Any) -> bytes:
    return pickle_answer(lambda: function(shared, item))
