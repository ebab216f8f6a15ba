"""What a Ray Train worker does: it runs one rank as a child process and waits for it.

    DataParallelTrainer(run_rank, train_loop_config=RankSettings(...).__dict__, ...)

The rank is the same program as under torchrun (worker.py). Ray Train gives it its number, its GPU
and the address of rank 0. A child process, because Ray runs the function in a thread of an actor:
there no signal handler can be installed, ending the rank would end the actor, and what the rank
prints would go to Ray's session folder. Ray's logs get exit codes only.
"""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.process_tree import ProcessTree
from outrider.training.distributed.fail_fast import GRACE_S
from outrider.training.distributed.rank_output import rank_log
from outrider.training.distributed.spec import Preempted

WORKER = "outrider.training.distributed.worker"
"""The program of a rank, under every launcher."""

NOT_OURS = "ignore::FutureWarning:torch.distributed.c10d_logger"
"""A warning that DeepSpeed causes by calling a renamed function of torch's; users cannot fix it."""

_OTHERS_S = GRACE_S + 5.0
"""Time for the other ranks to end after one did, in seconds. Ray kills them when the first worker
fails, and a killed rank leaves no message."""


@dataclass(frozen=True)
class RankSettings:
    """What the launcher tells every rank of one attempt."""

    spec_path: str
    errors_dir: str
    """Directory of this attempt's error records, on the disk that all nodes share."""
    log_dir: str
    environment: dict[str, str]
    """The launcher's variables for ranks. A node's own value wins."""
    cores: int
    cluster_address: str
    """Of Ray's head, in RAY_ADDRESS: the rank can connect to the cluster."""


class RankEnded(RuntimeError):
    """A rank ended with an error; its message is in its error record."""

    def __init__(self, rank: int, code: int) -> None:
        super().__init__(f"rank {rank} ended with code {code}")
        self.rank, self.code = rank, code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rank, self.code)


def run_rank(settings: dict[str, Any]) -> int:
    """Runs this worker's rank to its end; 0, or the code of a requested stop.

    Raises a `RankEnded` after another code, once the other ranks have ended or had time to.
    """
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    given = RankSettings(**settings)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    first = broadcast_from_rank_zero(_free_address() if rank == 0 else None)
    place = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "MASTER_ADDR": first[0],
        "MASTER_PORT": first[1],
    }
    errors_dir = Path(given.errors_dir)
    if not errors_dir.is_dir():
        raise OutriderError(
            f"{given.errors_dir} does not exist on node {socket.gethostname()}; training on a"
            " cluster needs the run directory on a disk that all nodes share"
        )
    with ProcessTree() as tree, rank_log(Path(given.log_dir), rank).open("ab") as log:
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
            [sys.executable, "-m", WORKER, given.spec_path],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        code = process.wait()
    write_json(_ended_file(errors_dir, rank), {"code": code})
    if code in (0, Preempted.exit_code):
        return code
    deadline = time.monotonic() + _OTHERS_S
    while time.monotonic() < deadline and len(ended_ranks(errors_dir)) < world:
        time.sleep(0.2)
    raise RankEnded(rank, code)


def ended_ranks(errors_dir: Path) -> dict[int, int]:
    """Exit code of every rank that has ended and whose worker is alive."""
    found = {}
    for path in errors_dir.glob("ended.rank*.json"):
        rank = int(path.name.removeprefix("ended.rank").removesuffix(".json"))
        found[rank] = read_json(path)["code"]
    return found


def _ended_file(errors_dir: Path, rank: int) -> Path:
    return errors_dir / f"ended.rank{rank}.json"


def _free_address() -> tuple[str, int]:
    import ray

    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]
