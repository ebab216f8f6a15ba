"""`outrider doctor`: shows what this machine can run and what is missing."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

from outrider.cli.options import AsJson, Runs
from outrider.common.errors import OutriderError
from outrider.pipeline.provenance import gpus, versions
from outrider.serving.vllm_hooks.version import runs_on_cpu, untried_version, vllm_version

LEAST_DRIVER = 580
"""Oldest NVIDIA driver that torch's CUDA 13 build works with."""

LEAST_MEMORY, LEAST_DISK, LEAST_SHARED = 6e9, 5e9, 1e9
"""Bytes that a run on nano R1 needs: memory, disk space for the run directory, and /dev/shm."""


class Finding(NamedTuple):
    """One row of the table."""

    what: str
    state: Literal["ok", "missing", "note"]
    """`missing`: training needs it; `note`: only some features need it"""
    found: str
    """What was found, or what is missing and the command that fixes it"""


def doctor(*, runs: Runs = Path("runs"), as_json: AsJson = False) -> int:
    """Show what this machine can run: packages, GPUs, memory, disk, compiler, credentials.

    Changes nothing. Exits with status 1 if something that training needs is missing.

    Parameters
    ----------
    as_json
        Print one JSON object instead of the table. It never contains credentials.
    """
    from rich.console import Console
    from rich.table import Table

    from outrider.pipeline.attempt import print_json

    findings = [*_packages(), *_gpus(), *_machine(runs), *_optional()]
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        table = Table.grid(padding=(0, 2))
        colours = {"ok": "green", "missing": "red"}
        for what, state, found in findings:
            table.add_row(what, f"[{colours.get(state, 'yellow')}]{state}[/]", found)
        Console(highlight=False).print(table)
    return int(any(finding.state == "missing" for finding in findings))


def _judged(
    what: str,
    good: object,
    found: str,
    lacking: str,
    otherwise: Literal["missing", "note"] = "missing",
) -> Finding:
    return Finding(what, "ok", found) if good else Finding(what, otherwise, lacking)


def _packages() -> list[Finding]:
    try:
        vllm = vllm_version()
        refusal = untried_version(vllm)
    except OutriderError as error:
        vllm = ""
        refusal = str(error)
    found = [
        Finding("Python", "ok", platform.python_version()),
        _judged("vLLM", not refusal, vllm, str(refusal)),
    ]
    installed = versions()
    for name in ("torch", "deepspeed", "transformers"):
        version = installed.get(name, "")
        found.append(_judged(name, version, version, "not installed; make setup"))
    return found


def _gpus() -> list[Finding]:
    found = gpus()
    if not found:
        return [Finding("GPU", "note", "none: the embedded target runs on the CPU, R1 does not")]
    names = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.mebibytes:,} MiB)" for gpu in found))
    driver = found[0].driver
    return [
        Finding("GPU", "ok", f"{len(found)} x {names}"),
        _judged(
            "driver",
            int(driver.partition(".")[0] or 0) >= LEAST_DRIVER,
            driver,
            f"{driver or 'unknown'}: torch sees no GPU with it; update it to {LEAST_DRIVER} or"
            " newer, or use a vLLM container that runs on it",
        ),
        _judged(
            "vLLM's build",
            importlib.util.find_spec("vllm") and not runs_on_cpu(),
            "for GPUs",
            "not for GPUs; rm -r .venv && make setup",
        ),
    ]


def _machine(runs: Path) -> list[Finding]:
    import psutil

    from outrider.eval.report.formatting import bytes_text

    place = next(path for path in (runs.resolve(), *runs.resolve().parents) if path.exists())
    memory = psutil.virtual_memory().available
    disk = shutil.disk_usage(place).free
    shared = shutil.disk_usage("/dev/shm").free
    compiler = shutil.which("g++") or shutil.which("c++")
    memory_free, shared_free = (f"{bytes_text(size)} free" for size in (memory, shared))
    at = f"{bytes_text(disk)} free at {place}"
    return [
        Finding("processor", "ok", f"{len(os.sched_getaffinity(0))} cores"),
        _judged(
            "memory",
            memory >= LEAST_MEMORY,
            memory_free,
            f"{memory_free}, {bytes_text(LEAST_MEMORY)} needed; end other programs",
        ),
        _judged(
            "disk",
            disk >= LEAST_DISK,
            at,
            f"{at}, {bytes_text(LEAST_DISK)} needed; free some, or give --runs DIR",
        ),
        _judged(
            "shared memory",
            shared >= LEAST_SHARED,
            shared_free,
            f"{shared_free}, {bytes_text(LEAST_SHARED)} needed; start the container with"
            " --shm-size=16g or --ipc=host",
        ),
        _judged(
            "C++ compiler",
            compiler,
            str(compiler),
            "none: engines cannot compile; apt install g++ python3-dev, or measure"
            " eval.engine_modes=[eager] only",
        ),
    ]


def _optional() -> list[Finding]:
    from huggingface_hub import get_token

    extras = {
        "privacy": ("presidio_analyzer", "privacy.mode"),
        "cluster": ("ray", "cluster.address"),
        "live": ("prometheus_client", "outrider deploy and outrider adapt"),
    }
    return [
        _judged(
            "Hugging Face",
            get_token(),
            "a token is set",
            "no token: public models only; hf auth login, or set HF_TOKEN",
            "note",
        ),
        _judged(
            "W&B",
            "WANDB_API_KEY" in os.environ,
            "WANDB_API_KEY is set: runs with training.wandb_project are sent there",
            "runs with training.wandb_project are logged on this disk only; set WANDB_API_KEY",
            "note",
        ),
        *(
            _judged(
                f"extra {extra}",
                importlib.util.find_spec(module),
                f"for {use}",
                f"needed for {use}; pip install -e '.[{extra}]' in Outrider's checkout",
                "note",
            )
            for extra, (module, use) in extras.items()
        ),
    ]
