"""`outrider doctor`: what this machine can run, and the command that mends what is missing.

outrider doctor
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from outrider.cli.options import AsJson, Runs
from outrider.common.errors import OutriderError
from outrider.pipeline.provenance import gpus
from outrider.serving.vllm_hooks.version import runs_on_cpu, untried_version, vllm_version

LEAST_DRIVER = 580
"""Oldest NVIDIA driver that torch's CUDA 13 build works with."""

LEAST_MEMORY, LEAST_DISK, LEAST_SHARED = 6e9, 5e9, 1e9
"""Bytes that a run on the embedded target needs: memory, disk below the runs, /dev/shm."""

INSTALL = "pip install -e '.[{}]' in Outrider's checkout"


class Finding(NamedTuple):
    """One line of the doctor's page."""

    what: str
    state: Literal["ok", "missing", "note"]
    """`missing`: a run cannot do without it; `note`: only some features need it"""
    found: str
    fix: str = ""


def doctor(*, runs: Runs = Path("runs"), as_json: AsJson = False) -> int:
    """Say what this machine can run: packages, GPUs, memory, disk, compiler, credentials.

    Changes nothing. Exit status 1: something that training needs is missing.

    Parameters
    ----------
    as_json
        Print one JSON object instead of the table. It never holds a credential.
    """
    findings = examine(runs)
    if as_json:
        from outrider.pipeline.attempt import print_json

        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        from rich.console import Console
        from rich.table import Table

        table, colours = Table.grid(padding=(0, 2)), {"ok": "green", "missing": "red"}
        for what, state, found, fix in findings:
            colour = colours.get(state, "yellow")
            table.add_row(what, f"[{colour}]{state}[/]", f"{found}; {fix}" if fix else found)
        Console(highlight=False).print(table)
    return int(any(finding.state == "missing" for finding in findings))


def examine(runs: Path) -> list[Finding]:
    """Everything that is looked at, in the order in which a run needs it."""
    return [*_packages(), *_gpus(), *_machine(runs), *_optional()]


def _packages() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", "ok", python)
    try:
        vllm = vllm_version()
    except OutriderError as error:
        yield Finding("vLLM", "missing", str(error))
    else:
        refusal = untried_version(vllm)
        yield Finding("vLLM", "missing" if refusal else "ok", refusal or vllm)
    for package in ("torch", "deepspeed", "transformers"):
        if importlib.util.find_spec(package):
            yield Finding(package, "ok", importlib.metadata.version(package))
        else:
            yield Finding(package, "missing", "not installed", "make setup")


def _gpus() -> Iterator[Finding]:
    found = gpus()
    if not found:
        yield Finding("GPU", "note", "none: the embedded target runs on the CPU, R1 does not")
        return
    names = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.mebibytes:,} MiB)" for gpu in found))
    yield Finding("GPU", "ok", f"{len(found)} x {names}")
    driver = found[0].driver
    if int(driver.partition(".")[0] or 0) < LEAST_DRIVER:
        fix = f"update it to {LEAST_DRIVER} or newer, or use a vLLM container that runs on it"
        yield Finding("driver", "missing", f"{driver or 'unknown'}: torch sees no GPU with it", fix)
    else:
        yield Finding("driver", "ok", driver)
    if importlib.util.find_spec("vllm") and runs_on_cpu():
        yield Finding("build", "missing", "vLLM is a CPU build", "rm -r .venv && make setup")


def _machine(runs: Path) -> Iterator[Finding]:
    import psutil

    from outrider.pipeline.plan.units import bytes_text

    cores = len(os.sched_getaffinity(0))
    yield Finding("processor", "ok", f"{cores} cores")
    place = next(path for path in (runs.resolve(), *runs.resolve().parents) if path.exists())
    shared = Path("/dev/shm")
    for what, free, least, fix in (
        (
            "memory",
            psutil.virtual_memory().available,
            LEAST_MEMORY,
            "end other programs, or use a larger machine",
        ),
        ("disk", shutil.disk_usage(place).free, LEAST_DISK, "free some, or give --runs DIR"),
        (
            "shared memory",
            shutil.disk_usage(shared).free if shared.is_dir() else 0,
            LEAST_SHARED,
            "start the container with --shm-size=16g or --ipc=host",
        ),
    ):
        where = f" at {place}" if what == "disk" else ""
        enough = free >= least
        text = f"{bytes_text(free)} free{where}"
        if enough:
            yield Finding(what, "ok", text)
        else:
            yield Finding(what, "missing", f"{text}, {bytes_text(least)} needed", fix)
    if compiler := shutil.which("g++") or shutil.which("c++"):
        yield Finding("C++ compiler", "ok", compiler)
    else:
        fix = "apt install g++ python3-dev, or measure eval.engine_modes=[eager] only"
        yield Finding("C++ compiler", "missing", "none: engines cannot compile", fix)


def _optional() -> Iterator[Finding]:
    from huggingface_hub import get_token

    login = "hf auth login, or set HF_TOKEN"
    yield (
        Finding("Hugging Face", "ok", "a token is set")
        if get_token()
        else Finding("Hugging Face", "note", "no token: public models only", login)
    )
    tracked = "WANDB_API_KEY" in os.environ
    yield (
        Finding("W&B", "ok", "WANDB_API_KEY is set")
        if tracked
        else Finding("W&B", "note", "runs are logged on this disk only", "set WANDB_API_KEY")
    )
    for extra, module, use in (
        ("privacy", "presidio_analyzer", "privacy.mode"),
        ("cluster", "ray", "cluster.address"),
        ("live", "prometheus_client", "outrider deploy --local and --metrics-port"),
    ):
        if importlib.util.find_spec(module):
            yield Finding(f"extra {extra}", "ok", f"for {use}")
        else:
            text, fix = f"not installed, needed for {use}", INSTALL.format(extra)
            yield Finding(f"extra {extra}", "note", text, fix)
