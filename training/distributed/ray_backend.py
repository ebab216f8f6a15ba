"""Ray Train's backend for ranks that are child processes: it shares the GPUs of a node.

Every rank sees all GPUs of its node's ranks and takes that of its LOCAL_RANK, as under torchrun.
This module is imported only where Ray is installed.
"""

from ray.train.backend import Backend, BackendConfig


class RankBackend(Backend):
    """No process group in Ray's processes; accelerate makes it in the ranks."""

    share_cuda_visible_devices = True


class RankBackendConfig(BackendConfig):
    """Names the backend."""

    @property
    def backend_cls(self) -> type[RankBackend]:
        return RankBackend
