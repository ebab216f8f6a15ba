"""A Ray cluster of several nodes on this machine, each with its own raylet and object store.

with ray_nodes(cores=[1, 1]) as nodes:
    train(..., cluster=nodes.config(training_restarts=1))
    nodes.kill(0)
    nodes.add(1)
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.common.cluster.config import ClusterConfig
from outrider.common.process_tree import ProcessTree

STORE = 80 * 2**20
"""Bytes of each object store, the smallest that Ray takes being 75 MB."""


class RayNodes:
    """A head without cores for training, and nodes that can be killed and added."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._shared = {
            "object_store_memory": STORE,
            "include_dashboard": False,
            "temp_dir": str(folder),
        }
        # Its hooks are signal handlers, and tests add nodes in threads. The tree ends the nodes.
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, **self._shared},
            shutdown_at_exit=False,
        )
        self.nodes: list[Any] = []

    def add(self, cores: int) -> None:
        """Adds a node."""
        shared = {key: value for key, value in self._shared.items() if key != "include_dashboard"}
        self.nodes.append(self._cluster.add_node(num_cpus=cores, wait=True, **shared))

    def kill(self, number: int) -> None:
        """kill -9 of a node's raylet; what runs on the node ends, as when a machine is lost."""
        (raylet,) = self.nodes[number].all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        raylet.process.wait()

    def config(self, **settings: object) -> ClusterConfig:
        """The recipe's section for this cluster."""
        return ClusterConfig(address=self._cluster.address, **settings)

    def end(self) -> None:
        """Ends what is left."""
        self._cluster.shutdown()


@contextmanager
def ray_nodes(cores: list[int]) -> Iterator[RayNodes]:
    """A head and a node for each number of cores; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rt-"))
    before = dict(os.environ)
    try:
        with ProcessTree() as tree:
            (folder / "ray").mkdir()
            private = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
            os.environ.update(tree.environment | private)
            nodes = RayNodes(folder / "ray")
            try:
                for each in cores:
                    nodes.add(each)
                yield nodes
            finally:
                nodes.end()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
