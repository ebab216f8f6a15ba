"""Reserves this node: Ray schedules no other task or actor here meanwhile.

    with node_alone():
        ...                     # start servers and measure them

The reservation is a placement group with all cores, GPUs and custom resources of this node, so it
starts when the work that runs here ends. Tasks that ask for no resource at all are not kept out;
Outrider starts none while it measures. Ray must be connected (common/cluster/session.py).
"""

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console

from outrider.common.errors import OutriderError

PATIENCE_S = 1800.0
"""Longest wait for the work that runs on this node, in seconds."""

_NOT_RESERVED = ("memory", "object_store_memory")
_DERIVED = ("node:", "accelerator_type:", "_group_")
"""Names of nodes and labels, and the shares of other placement groups."""

_held: list[bool] = []
"""One entry for each reservation of this process."""


def is_reserved() -> bool:
    """Whether this process has reserved its node, so that tasks would wait for other nodes."""
    return bool(_held)


@contextlib.contextmanager
def node_alone(patience_s: float = PATIENCE_S) -> Iterator[dict[str, float]]:
    """Reserves this node; yields what was reserved.

    Raises:
        OutriderError: the node is still in use after `patience_s`.
    """
    import ray
    from ray.util.placement_group import (
        NODE_ID_LABEL_KEY,
        placement_group,
        remove_placement_group,
    )

    here = ray.get_runtime_context().get_node_id()
    resources = node_resources(here)
    if not resources:  # a head that Ray gives no work
        yield resources
        return
    group = placement_group([resources], bundle_label_selector=[{NODE_ID_LABEL_KEY: here}])
    _held.append(True)
    try:
        if not group.wait(1):
            Console(stderr=True, highlight=False).print(
                "waiting until other work on this node ends, for undisturbed measurements"
            )
            deadline = time.monotonic() + patience_s
            while not (free := group.wait(1)) and time.monotonic() < deadline:
                pass
            if not free:
                raise OutriderError(
                    f"this node ({ray.util.get_node_ip_address()}) is still in use after"
                    f" {patience_s:.0f} s, and measurements need it alone; see `ray status`, end"
                    " the other work, and rerun the command to resume"
                )
        yield resources
    finally:
        _held.pop()
        remove_placement_group(group)


def node_resources(node_id: str) -> dict[str, float]:
    """All cores, GPUs and custom resources of a node."""
    import ray

    (node,) = [each for each in ray.nodes() if each["NodeID"] == node_id]
    return {
        name: amount
        for name, amount in node["Resources"].items()
        if name not in _NOT_RESERVED and not any(part in name for part in _DERIVED)
    }
