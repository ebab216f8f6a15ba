"""The rank and world size of this process, from torchrun's, deepspeed's or Slurm's variables.

    rank = join_world(processes=16, by_slurm=True)    # sets RANK, WORLD_SIZE, ... from Slurm's

The world size must be the recipe's. Processes that a launcher did not reach would each train as
rank 0 of 1, repeat the same work 16 times and overwrite each other's files."""

import os
import re
from collections.abc import Mapping

from outrider.common.errors import OutriderError

PORT = 29500
"""Default of MASTER_PORT on the first machine, as in torch."""


def join_world(processes: int, by_slurm: bool) -> int:
    """Returns this process's rank; an `OutriderError` if another number of processes started.

    `by_slurm`: use srun's variables. A shell in a Slurm job has them too and is no worker.
    """
    if by_slurm and "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ.update(slurm_world(os.environ))
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    found = int(os.environ.get("WORLD_SIZE", "1"))
    if found != processes:
        raise OutriderError(
            f"training.processes={processes}, but {found} processes were started;"
            " training.launcher must start exactly that many, over all machines together"
        )
    return int(os.environ.get("RANK", "0"))


def slurm_world(environment: Mapping[str, str]) -> dict[str, str]:
    """torch's variables from srun's; ranks meet at MASTER_ADDR or the job step's first machine."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get(
        "SLURM_JOB_NODELIST", "127.0.0.1"
    )
    # "8(x2)": 8 tasks on each of two machines.
    tasks_each = environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split("(")[0].split(",")[0]
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"],
        "LOCAL_WORLD_SIZE": tasks_each,
        "MASTER_ADDR": environment.get("MASTER_ADDR", first_host(hosts)),
        "MASTER_PORT": environment.get("MASTER_PORT", str(PORT)),
    }


def first_host(nodelist: str) -> str:
    """The first machine of Slurm's compact list: `gpu-[003-005,9],login` -> `gpu-003`."""
    head = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if head is None:
        raise OutriderError(
            f"SLURM_STEP_NODELIST={nodelist!r} names no machine; set MASTER_ADDR to the first one"
        )
    prefix, number, suffix = head.groups()
    return prefix + (number or "") + (suffix or "")
