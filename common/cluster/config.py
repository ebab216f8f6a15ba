"""The recipe's section `cluster:` a Ray cluster for capture, training and evaluation.

ClusterConfig(address="local", capture_replicas=2)
"""

import re
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ClusterConfig(BaseModel):
    """`cluster:` where the stages run. Without an address, on this machine and without Ray."""

    model_config = ConfigDict(extra="forbid")

    address: str | None = None
    """Ray cluster. `local` starts a private one on this machine for the run, `auto` finds the one
    that this machine belongs to, `HOST:PORT` is the address of a head node. null: no Ray. Needs the
    extra `cluster`."""

    capture_replicas: int = Field(default=1, ge=1)
    """Engines that capture at the same time, each on `serving.engine`'s number of GPUs of one node.
    The feature store does not depend on it (on a CPU with the same `cores_per_replica`)."""

    cores_per_replica: int = Field(default=1, ge=1)
    """CPU cores that Ray counts for each replica. On a CPU they are also the threads of its engine,
    on which bf16 states depend in single positions."""

    in_flight_gb: float | None = Field(default=None, gt=0)
    """States in GB between capture and their consumer: being captured, waiting in object stores,
    and being read. Replicas wait when it is reached. null: half of the smallest node's object
    store."""

    replica_restarts: ClassVar[int] = 3
    """How often Ray starts a replica again that ends unexpectedly, on any node with room. The
    others do its work meanwhile."""

    start_timeout_s: ClassVar[float] = 1800.0
    """Longest time in seconds without any running replica: for GPUs to become free, and for the
    engine to start. Training waits as long for its processes to start."""

    training_cores: ClassVar[int] = 1
    """CPU cores of each training process, and the number of its threads. Each has a GPU too where
    the cluster has any."""

    training_restarts: ClassVar[int] = 3
    """How often training resumes after it lost processes, with their node or killed. It resumes
    with the processes that the cluster has room for."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        form = r"local|auto|[A-Za-z0-9._-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}"
        if value is not None and not re.fullmatch(form, value):
            raise ValueError(
                f"{value!r} is not an address of a Ray cluster; give local, auto or HOST:PORT (ray://"
                " clients are not supported: run the command on a node of the cluster, or as a"
                " job with `ray job submit`)"
            )
        return value
