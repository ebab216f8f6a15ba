"""Groups of ranks that Ray Train starts and restarts on a cluster.

    trainer = rank_trainer(run_rank, settings, layout)
    trainer.fit()                  # in a thread; raises the error that ended the last group

Every rank calls `run_rank(settings)`, which may call `this_rank` and `from_rank_zero`. If ranks are
lost, or if the cluster has room for more, another group starts with as many ranks as fit.

`DataParallelTrainer`, TorchTrainer's base class, creates no process group in Ray's processes. This
module imports Ray and is imported only if a run uses a cluster.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError

Settings = TypeVar("Settings", bound=Mapping[str, Any])
Value = TypeVar("Value")


@dataclass(frozen=True)
class RankLayout:
    """How many ranks run, what each reserves, and when groups are started."""

    ranks: int
    """Maximum number of ranks of a group."""
    cluster: ClusterConfig
    with_gpu: bool
    """Whether each rank reserves a GPU."""
    folder: Path
    """Folder that Ray Train writes to; all nodes share its disk."""
    group_start_s: float
    """Timeout for the start of a group, in seconds."""
    resize_s: float
    """Interval between checks for whether more ranks fit, in seconds."""


@dataclass(frozen=True)
class RankNumbers:
    """Numbers of this process's rank, as torchrun counts them."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int


class RankTrainer(Protocol):
    """Runs groups of ranks until one has ended normally."""

    def fit(self) -> object: ...


def rank_trainer(
    function: Callable[[Settings], None], settings: Settings, layout: RankLayout
) -> RankTrainer:
    """Returns the trainer whose ranks run `function(settings)`, which nodes import by name."""
    cluster = layout.cluster
    os.environ |= {
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{layout.group_start_s:g}",
    }
    resources_of_rank = {"CPU": float(cluster.training_cores)}
    if layout.with_gpu:
        resources_of_rank["GPU"] = 1.0
    # `Any`, because Ray annotates its parameters with the classes of Ray Train V1.
    run_config: Any = RunConfig(
        name=layout.folder.name,
        storage_path=str(layout.folder.parent),
        failure_config=FailureConfig(
            max_failures=cluster.training_restarts,
            controller_failure_limit=math.ceil(cluster.start_timeout_s / layout.group_start_s),
        ),
    )
    train_function: Any = function
    trainer: RankTrainer = DataParallelTrainer(
        train_function,
        train_loop_config=dict(settings),
        backend_config=_RankBackendConfig(),
        scaling_config=ScalingConfig(
            num_workers=(1, layout.ranks) if layout.ranks > 1 else 1,
            use_gpu=layout.with_gpu,
            resources_per_worker=resources_of_rank,
            placement_strategy="PACK",
            elastic_resize_monitor_interval_s=layout.resize_s,
        ),
        run_config=run_config,
    )
    return trainer


def rank_error(failure: Exception) -> OutriderError | None:
    """Returns the `OutriderError` that ended a rank, if one did; `failure` is what `fit` raised."""
    for error in getattr(failure, "worker_failures", {}).values():
        if isinstance(error, OutriderError):
            return error
    return None


def this_rank() -> RankNumbers:
    """Returns the numbers of the rank that calls it."""
    context = ray.train.get_context()
    return RankNumbers(
        rank=context.get_world_rank(),
        ranks=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_ranks=context.get_local_world_size(),
    )


def from_rank_zero(value: Value | None) -> Value:
    """Returns rank 0's value on every rank; all ranks must call it."""
    shared: Value = broadcast_from_rank_zero(value)
    return shared


def head_address() -> str:
    """HOST:PORT of the cluster that this process is connected to."""
    address: str = ray.get_runtime_context().gcs_address
    return address


def node_address() -> str:
    """Returns the IP address of this process's node."""
    address: str = ray.util.get_node_ip_address()
    return address


class _RankBackend(Backend):
    """Makes all GPUs of the node visible to ranks, as torchrun does."""

    share_cuda_visible_devices = True


class _RankBackendConfig(BackendConfig):
    """Configuration that selects `_RankBackend`."""

    @property
    def backend_cls(self) -> type[_RankBackend]:
        return _RankBackend
