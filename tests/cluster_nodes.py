"""A Ray cluster of several raylets on this machine: each is a node with its own object store.

    with local_nodes() as nodes:
        first, second = nodes.add(), nodes.add()
        with open_cluster(ClusterConfig(address=nodes.address)):
            nodes.kill(second)          # kill -9, as a machine that loses power
            nodes.add()

The head has no cores, so that work runs on the added nodes only. Everything listens on 127.0.0.1.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outrider.common.cluster import session
from outrider.common.process_tree import ProcessTree, changed_environment

MB = 2**20


class LocalNodes:
    """The nodes, made by `local_nodes`."""

    def __init__(self, folder: Path, store_mb: int) -> None:
        self._folder, self._store_mb = folder, store_mb
        self.nodes: list[Any] = []
        self.head = self._node(head=True, cpus=0, resources=None)
        self.address: str = self.head.gcs_address

    def add(
        self,
        cpus: int = 1,
        resources: dict[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Any:
        """Starts a raylet with `cpus` cores; `environment` is that of its processes."""
        with changed_environment(environment or {}):
            node = self._node(head=False, cpus=cpus, resources=resources)
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> None:
        """Ends a node with kill -9: its raylet, and so its object store and its workers."""
        self.nodes.remove(node)
        for info in node.all_processes["raylet"]:
            info.process.kill()
            info.process.wait()
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def _node(self, head: bool, cpus: int, resources: dict[str, float] | None) -> Any:
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        parameters = RayParams(
            num_cpus=cpus,
            num_gpus=0,
            resources=resources,
            object_store_memory=self._store_mb * MB,
            node_ip_address="127.0.0.1",
            include_dashboard=False,
            include_log_monitor=False,
            temp_dir=str(self._folder),
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
            gcs_address=None if head else self.address,
            # Only the head has these; a node that repeats them would have to repeat all.
            _system_config=session._SYSTEM if head else None,
        )
        for attempt in range(3):
            try:
                return Node(parameters, head=head, shutdown_at_exit=False, spawn_reaper=False)
            except Exception:  # Ray's start has a time limit, and this machine may be busy
                if attempt == 2:
                    raise
                time.sleep(1.0)
        raise AssertionError


@contextlib.contextmanager
def local_nodes(store_mb: int = 100) -> Iterator[LocalNodes]:
    """A head without cores, and the nodes that are added; ends them all."""
    in_memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir=in_memory))
    with (
        ProcessTree(folder=folder) as tree,
        changed_environment(session._SETTINGS | tree.environment | {"RAY_AUTH_MODE": "disabled"}),
        session._on_loopback(),
        changed_environment({"RAY_AUTH_MODE": _authentication()}),
    ):
        yield LocalNodes(folder, store_mb)


def _authentication() -> str:
    """The mode that Ray's library keeps in this process: `token` after a private cluster."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return "token" if is_token_auth_enabled() else "disabled"
