"""The recipe section `cluster`: a Ray cluster for capture, training and evaluation."""

import re
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ClusterConfig(BaseModel):
    """Ray cluster that runs the stages; without an address, they run on this machine."""

    model_config = ConfigDict(extra="forbid")

    address: str | None = None
    """Ray cluster. `local` starts a private one on this machine for the run, `auto` finds the one
    that this machine belongs to, `HOST:PORT` is the address of a head node. null: no Ray. Needs the
    `cluster` extra."""

    capture_replicas: int = Field(default=1, ge=1)
    """Number of engines that capture at the same time, each on one node with as many GPUs as
    `serving.engine` needs. It does not affect the captured states (but on a CPU,
    `cores_per_replica` does)."""

    cores_per_replica: int = Field(default=1, ge=1)
    """CPU cores that Ray reserves for each replica. On a CPU, also the number of threads of its
    engine, which affects bf16 states at individual positions."""

    in_flight_gb: float | None = Field(default=None, gt=0)
    """Limit in GB on states in flight: being captured, waiting in object stores, or being read.
    Replicas wait when it is reached. null: half of the smallest node's object store."""

    replica_restarts: ClassVar[int] = 3
    """Maximum number of times that a replica restarts, on any node with room, after it ends
    unexpectedly. Meanwhile, the other replicas do its work."""

    start_timeout_s: ClassVar[float] = 1800.0
    """Maximum time in seconds without a running replica, while waiting for GPUs to become free and
    an engine to start; also the maximum time for the training processes to start."""

    training_cores: ClassVar[int] = 1
    """CPU cores and threads of each training process. Each process also gets a GPU if the cluster
    has GPUs."""

    training_restarts: ClassVar[int] = 3
    """Maximum number of times that training resumes after processes are killed or lost with their
    node. It resumes with as many processes as the cluster has room for."""

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
