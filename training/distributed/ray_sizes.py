"""How many ranks a Ray cluster has room for, and when it has room for more.

    sizes = group_sizes(processes=16, rows_per_step=16)     # [16, 8, 4, 2, 1]
    size = largest_that_fits(sizes, {"CPU": 1, "GPU": 1}, wait_s=600)
    with Growth(size, sizes, each) as growth:
        growth.possible()

The rows of a step are shared equally, so a group has a number of ranks that divides
`training.rows_per_step`. Room is found out by reserving it with a placement group: the scheduler's
answer accounts for nodes, GPUs and other users, and an autoscaler adds nodes for a reservation that
waits.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

SETTLE_S = 10.0
"""Time in which Ray frees what a dead rank used, and in which nodes that return together are all
seen, in seconds."""

_SMALLER_S = 2.0
"""Time for a reservation of which the cluster has enough free, in seconds."""

STRATEGY = "PACK"
"""Ranks share nodes where they can: their collectives are faster within a node."""

Resources = dict[str, float]


def group_sizes(processes: int, rows_per_step: int) -> list[int]:
    """The numbers of ranks that can share a step's rows, largest first, at most `processes`."""
    return [size for size in range(processes, 0, -1) if rows_per_step % size == 0]


def largest_that_fits(
    sizes: list[int], each: Resources, wait_s: float, stopped: Callable[[], bool] = lambda: False
) -> int | None:
    """The largest of `sizes` for which there is room now, waiting `wait_s` for the first of them.

    None if there is room for none of them, or after a request to stop.
    """
    for number, size in enumerate(sizes):
        group = _reserve(size, each)
        try:
            if _granted(group, wait_s if number == 0 else _SMALLER_S, stopped):
                return size
        finally:
            _free(group)
        if stopped():
            return None
    return None


class Growth:
    """A reservation for the ranks that a group lacks to the next larger size."""

    def __init__(self, size: int, sizes: list[int], each: Resources) -> None:
        larger = [other for other in sizes if other > size]
        self._missing = min(larger) - size if larger else 0
        self._each = each
        self._group: PlacementGroup | None = None
        self._since: float | None = None

    def __enter__(self) -> "Growth":
        return self

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            _free(self._group)

    def possible(self) -> bool:
        """Whether there has been room for a larger group for `SETTLE_S`.

        The first call makes the reservation. The ranks must be running: before, it could take the
        room that they start in.
        """
        if not self._missing:
            return False
        if self._group is None:
            self._group = _reserve(self._missing, self._each)
        if self._since is None and _is_created(self._group):
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since > SETTLE_S


def _reserve(bundles: int, each: Resources) -> "PlacementGroup":
    from ray.util import placement_group

    return placement_group([dict(each) for _ in range(bundles)], strategy=STRATEGY)


def _granted(group: "PlacementGroup", wait_s: float, stopped: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + wait_s
    while not (granted := group.wait(0.5)) and time.monotonic() < deadline and not stopped():
        pass
    return granted


def _is_created(group: "PlacementGroup") -> bool:
    from ray.util import placement_group_table

    return placement_group_table(group)["state"] == "CREATED"


def _free(group: "PlacementGroup") -> None:
    from ray.util import remove_placement_group

    remove_placement_group(group)
