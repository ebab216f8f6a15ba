"""This node for itself: no task or actor of Ray is scheduled here meanwhile.

    with node_alone():
        ...                     # start servers and measure them

The reservation is a placement group with all cores, GPUs and custom resources of this node, so it
starts when the work that runs here ends. Tasks that ask for no resource at all are not kept out;
Outrider starts none while it measures. Ray must be connected (common/cluster/session.py).
"""

import contextlib
from collections.abc import Iterator

from rich.console import Console

from outrider.common.errors import OutriderError

PATIENCE_S = 1800.0
"""Longest wait for the work that runs on this node, in seconds."""

_NOT_RESERVED = ("memory", "object_store_memory")
_DERIVED = ("accelerator_type:", "_group_")
"""Labels, and the shares of other placement groups."""
_NAMES_A_NODE = "node:"
_HEAD = "node:__internal_head__"


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
    from ray.util.placement_group import placement_group, remove_placement_group

    resources = node_resources()
    group = placement_group([resources], strategy="STRICT_PACK")
    try:
        _held.append(True)
        if not group.wait(0.5):
            Console(stderr=True, highlight=False).print(
                "waiting until other work on this node ends, for undisturbed measurements"
            )
            if not group.wait(patience_s):
                raise OutriderError(
                    f"this node ({ray.util.get_node_ip_address()}) is still in use after"
                    f" {patience_s:.0f} s, and measurements need it alone; see `ray status`, end"
                    " the other work, and rerun the command to resume"
                )
        yield resources
    finally:
        _held.pop()
        remove_placement_group(group)


def node_resources() -> dict[str, float]:
    """All cores, GPUs and custom resources of this node, and a share of its name."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    (node,) = [each for each in ray.nodes() if each["NodeID"] == here]
    resources: dict[str, float] = {}
    for name, amount in node["Resources"].items():
        if name.startswith(_NAMES_A_NODE):
            if name != _HEAD:
                resources[name] = 0.001  # a bundle of it fits this node alone
        elif name not in _NOT_RESERVED and not any(part in name for part in _DERIVED):
            resources[name] = amount
    return resources
