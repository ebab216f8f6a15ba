"""Which process this is, of how many: as torchrun or deepspeed say it, or as Slurm does.

    rank = join_world(processes=16, by_slurm=True)       # sets RANK, WORLD_SIZE and so on where only Slurm's are there

The number must be the recipe's. Processes that each believe to be alone, because a launcher did not reach them, would train
16 times the same and write into each other's files.
"""

import os
import re

from outrider.common.errors import OutriderError

PORT = 29500
"""Where the processes meet on the first machine, if MASTER_PORT names no other; torch's own choice."""


def join_world(processes: int, by_slurm: bool) -> int:
    """This process's rank. `by_slurm`: variables of srun count (a shell inside a Slurm job has them too, and is no worker)."""
    if by_slurm and "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ.update(slurm_world(os.environ))
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    found = int(os.environ.get("WORLD_SIZE", "1"))
    if found != processes:
        raise OutriderError(
            f"training.processes={processes}, but {found} processes were started; training.launcher has to start exactly"
            " that many, over all machines together"
        )
    return int(os.environ.get("RANK", "0"))


def slurm_world(environment: os._Environ | dict[str, str]) -> dict[str, str]:
    """torch's variables from srun's. The processes meet at MASTER_ADDR or on the job step's first machine."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get(
        "SLURM_JOB_NODELIST", "127.0.0.1"
    )
    here = environment.get("SLURM_STEP_TASKS_PER_NODE", "1")
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"],
        "LOCAL_WORLD_SIZE": re.match(r"\d+", here).group(),
        "MASTER_ADDR": environment.get("MASTER_ADDR", first_host(hosts)),
        "MASTER_PORT": environment.get("MASTER_PORT", str(PORT)),
    }


def first_host(nodelist: str) -> str:
    """Of Slurm's compact list: `gpu-[003-005,9],login` -> `gpu-003`."""
    head = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if head is None:
        raise OutriderError(
            f"SLURM_STEP_NODELIST={nodelist!r} names no machine; set MASTER_ADDR to the first one"
        )
    prefix, number, suffix = head.groups()
    return prefix + (number or "") + (suffix or "")
