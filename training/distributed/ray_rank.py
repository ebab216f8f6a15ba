"""What a Ray Train worker does: it runs one rank as a child process and waits for it.

    DataParallelTrainer(run_rank, train_loop_config=asdict(RankSettings(...)), ...)

The rank is the same program as under torchrun (worker.py). Ray Train gives it its number, its GPU
and the address of rank 0. A child process, because Ray runs the function in a thread of an actor:
there no signal handler can be installed, ending the rank would end the actor, and what the rank
prints would go to Ray's session folder. Ray's logs get exit codes only.
"""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.collective import broadcast_from_rank_zero

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.process_tree import ProcessTree
from outrider.training.distributed.rank_output import rank_log
from outrider.training.distributed.spec import NOT_OURS, WORKER, TrainingSpec

SPEC = "spec.json"
"""The specification of a group of ranks, in the folder of its error records."""


@dataclass(frozen=True)
class RankSettings:
    """Settings that the launcher passes to every rank of all groups."""

    spec: dict[str, Any]
    environment: dict[str, str]
    """The launcher's variables for ranks. A node's own value wins."""
    cores: int
    cluster_address: str
    """Of Ray's head, in RAY_ADDRESS: the rank can connect to the cluster."""


class RankBackend(Backend):
    """No process group in Ray's processes; accelerate makes it in the ranks.

    Every rank sees all GPUs of its node's ranks and takes that of its LOCAL_RANK, as under
    torchrun.
    """

    share_cuda_visible_devices = True


class RankBackendConfig(BackendConfig):
    """Names the backend."""

    @property
    def backend_cls(self) -> type[RankBackend]:
        return RankBackend


def run_rank(settings: dict[str, Any]) -> None:
    """Runs this worker's rank to its end.

    Raises a `RuntimeError` if the rank was killed: then Ray Train starts another group. After any
    other error it returns, since a record tells the launcher.
    """
    given = RankSettings(**settings)
    spec = TrainingSpec.model_validate(given.spec)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    first = broadcast_from_rank_zero(_new_group(spec, world) if rank == 0 else None)
    spec_path = Path(first[0])
    place = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "MASTER_ADDR": first[1],
        "MASTER_PORT": first[2],
    }
    if not spec_path.is_file():
        raise OutriderError(
            f"{spec_path} does not exist on node {socket.gethostname()}; training on a cluster"
            " needs the run directory on a disk that all nodes share"
        )
    with ProcessTree() as tree, rank_log(spec.log_dir, rank).open("ab") as log:
        environment = (
            {"PYTHONWARNINGS": NOT_OURS} | given.environment | os.environ | tree.environment
        )
        environment |= {name: str(value) for name, value in place.items()}
        environment |= {
            "OMP_NUM_THREADS": str(given.cores),
            "PYTHONUNBUFFERED": "1",
            "RAY_ADDRESS": given.cluster_address,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(spec_path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        code = process.wait()
    write_json(spec_path.parent / f"ended.rank{rank}.json", {"code": code})
    if code < 0:
        raise RuntimeError(f"rank {rank} was killed by signal {-code}")


def _new_group(spec: TrainingSpec, world: int) -> tuple[str, str, int]:
    """The specification of a new group of ranks, and where they meet: host and port."""
    number = max((int(path.name.split("-")[1]) for path in groups(spec.out_dir)), default=0) + 1
    training = spec.training.model_copy(update={"processes": world})
    spec = spec.model_copy(update={"training": training, "attempt": number})
    spec.errors_dir.mkdir(parents=True, exist_ok=True)
    write_json(spec.errors_dir / SPEC, spec.model_dump(mode="json"))
    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return str(spec.errors_dir / SPEC), host, probe.getsockname()[1]


def groups(out_dir: Path) -> list[Path]:
    """Folders of the groups of ranks that have started, in order."""
    found = (path.parent for path in out_dir.glob(f"attempt-*/{SPEC}"))
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


def ended_ranks(errors_dir: Path) -> dict[int, int]:
    """Exit code of every rank that has ended and whose worker is alive."""
    found = {}
    for path in errors_dir.glob("ended.rank*.json"):
        rank = int(path.name.removeprefix("ended.rank").removesuffix(".json"))
        found[rank] = read_json(path)["code"]
    return found
