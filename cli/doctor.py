"""`outrider doctor`: shows what this machine can run and what is missing."""

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from outrider.cli.options import AsJson, Flag, Runs
from outrider.common.errors import OutriderError
from outrider.pipeline.provenance import gpus, versions
from outrider.serving.releases import release_support
from outrider.serving.vllm_version import runs_on_cpu, version_refusal, vllm_version
from outrider.speculators.kinds import kinds_with_package
from outrider.speculators.kinds.protocol import DrafterKind

LEAST_DRIVER = 580
"""Oldest NVIDIA driver that torch's CUDA 13 build works with."""

DEFAULT_CUDA_HOME = "/usr/local/cuda"

LEAST_MEMORY, LEAST_DISK, LEAST_SHARED = 6e9, 5e9, 1e9
"""Bytes that a run on nano R1 needs: memory, disk space for the run directory, and /dev/shm."""


def _option_for(kind: DrafterKind) -> str:
    """The option that installs what vLLM needs for the kind."""
    return f"--install-{kind.name}"


_INSTALL_OPTIONS = ["--install", *(_option_for(kind) for kind in kinds_with_package())]
"""Each of them installs all packages, which so far are one."""


class Finding(NamedTuple):
    """One row of the table."""

    what: str
    state: Literal["ok", "missing", "note"]
    """`missing`: training needs it; `note`: only some features need it"""
    found: str
    """What was found, or what is missing and the command that fixes it"""


def doctor(
    *,
    runs: Runs = Path("runs"),
    install: Annotated[bool, Flag, Parameter(name=_INSTALL_OPTIONS)] = False,
    as_json: AsJson = False,
) -> int:
    """Show what this machine can run: packages, GPUs, memory, disk, compiler, credentials.

    Changes nothing without --install. Exits with status 1 if something that training needs
    is missing.

    Parameters
    ----------
    install
        First download, compile and install what vLLM needs for a lookup of earlier responses,
        unless it is installed: a minute, once.
    as_json
        Print one JSON object instead of the table. It never contains credentials.
    """
    from rich.console import Console
    from rich.table import Table

    from outrider.cli.printing import print_json

    if install:
        _install_packages()
    findings = [*_packages(), *_gpus(), *_machine(runs), *_optional()]
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        table = Table.grid(padding=(0, 2))
        colours = {"ok": "green", "missing": "red"}
        for what, state, detail in findings:
            table.add_row(what, f"[{colours.get(state, 'yellow')}]{state}[/]", detail)
        Console(highlight=False).print(table)
    return int(any(finding.state == "missing" for finding in findings))


def _install_packages() -> None:
    """Installs those packages of kinds that are missing."""
    for kind in kinds_with_package():
        if kind.package_version() is None:
            print(f"{kind.in_words}: downloading and compiling; a minute", file=sys.stderr)
            kind.install_package()


def _judged(
    what: str,
    good: object,
    detail: str,
    lacking: str,
    *,
    otherwise: Literal["missing", "note"] = "missing",
) -> Finding:
    return Finding(what, "ok", detail) if good else Finding(what, otherwise, lacking)


def _packages() -> list[Finding]:
    try:
        vllm = vllm_version()
        refusal = version_refusal(vllm)
    except OutriderError as error:
        vllm = ""
        refusal = str(error)
    findings = [
        Finding("Python", "ok", platform.python_version()),
        _judged("vLLM", not refusal, vllm, str(refusal)),
    ]
    if vllm and refusal and (words := release_support(vllm)):
        findings.append(Finding("another vLLM", "note", f"{words}; docs/how-to/vllm-releases.md"))
    installed = versions()
    for name in ("torch", "deepspeed", "transformers"):
        version = installed.get(name, "")
        findings.append(_judged(name, version, version, "not installed; make setup"))
    return [*findings, *map(_package_of, kinds_with_package())]


def _package_of(kind: DrafterKind) -> Finding:
    """The package that vLLM needs for a kind. Without it, the kind is not measured."""
    installed = kind.package_version()
    return _judged(
        kind.in_words,
        installed,
        f"{kind.package} {installed}",
        f"not installed, so it is not measured; outrider doctor {_option_for(kind)}",
        otherwise="note",
    )


def _gpus() -> list[Finding]:
    visible = gpus()
    if not visible:
        return [Finding("GPU", "note", "none: the embedded target runs on the CPU, R1 does not")]
    # Equal GPUs are named once.
    names = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.mebibytes:,} MiB)" for gpu in visible))
    driver = visible[0].driver
    driver_release = int(driver.partition(".")[0] or 0)
    # Without vLLM, `runs_on_cpu` is False too.
    built_for_gpus = importlib.util.find_spec("vllm") and not runs_on_cpu()
    return [
        Finding("GPU", "ok", f"{len(visible)} x {names}"),
        _judged(
            "driver",
            driver_release >= LEAST_DRIVER,
            driver,
            f"{driver or 'unknown'}: torch sees no GPU with it; update it to {LEAST_DRIVER} or"
            " newer, or use a vLLM container that runs on it",
        ),
        _judged(
            "vLLM's build",
            built_for_gpus,
            "for GPUs",
            "not for GPUs; rm -r .venv && make setup",
        ),
        _compilers_of_kernels(),
    ]


def _compilers_of_kernels() -> Finding:
    """nvcc and ninja, without which vLLM silently uses other kernels."""
    nvcc = nvcc_path()
    paths = {"nvcc": nvcc, "ninja": shutil.which("ninja")}
    missing = [name for name, path in paths.items() if path is None]
    fixes = {
        "nvcc": "install the CUDA toolkit and set CUDA_HOME to its folder",
        "ninja": "put the environment's bin folder on PATH (. .venv/bin/activate)",
    }
    return _judged(
        "nvcc, ninja",
        not missing,
        str(nvcc),
        f"no {' and no '.join(missing)}: vLLM turns FlashInfer and DeepGEMM off, so engines may be"
        " slower and round otherwise than in production, above all R1 in FP8;"
        f" {'; '.join(fixes[name] for name in missing)}",
        otherwise="note",
    )


def nvcc_path() -> str | None:
    """The nvcc that vLLM's kernel libraries run; None if they find none.

    The rule is that of `_flashinfer_nvcc_path` in vllm/utils/flashinfer.py. The package
    nvidia-cuda-nvcc does not help: it is not searched, and is newer than the installed runtime.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if not home:
        on_path = shutil.which("nvcc")
        home = str(Path(on_path).parents[1]) if on_path else DEFAULT_CUDA_HOME
    return shutil.which(Path(home) / "bin" / "nvcc")


def _machine(runs: Path) -> list[Finding]:
    import psutil

    from outrider.eval.report.formatting import bytes_text

    # `runs` does not exist before the first run; its file system is that of the nearest parent.
    existing = next(path for path in (runs.resolve(), *runs.resolve().parents) if path.exists())
    disk = shutil.disk_usage(existing).free
    disk_free = f"{bytes_text(disk)} free at {existing}"
    memory = psutil.virtual_memory().available
    memory_free = f"{bytes_text(memory)} free"
    shared = shutil.disk_usage("/dev/shm").free
    shared_free = f"{bytes_text(shared)} free"
    cores = len(os.sched_getaffinity(0))
    findings = [
        Finding("processor", "ok", f"{cores} cores"),
        _judged(
            "memory",
            memory >= LEAST_MEMORY,
            memory_free,
            f"{memory_free}, {bytes_text(LEAST_MEMORY)} needed; end other programs",
        ),
        _judged(
            "disk",
            disk >= LEAST_DISK,
            disk_free,
            f"{disk_free}, {bytes_text(LEAST_DISK)} needed; free some, or give --runs DIR",
        ),
    ]
    # NCCL and vLLM's worker processes exchange data there; Docker's default is 64 MB.
    lacking = (
        f"{shared_free}, {bytes_text(LEAST_SHARED)} needed; start the container with"
        " --shm-size=16g or --ipc=host"
    )
    findings.append(_judged("shared memory", shared >= LEAST_SHARED, shared_free, lacking))
    return [*findings, _compiler()]


def _compiler() -> Finding:
    """The C++ compiler, which torch.compile needs."""
    compiler = shutil.which("g++") or shutil.which("c++")
    return _judged(
        "C++ compiler",
        compiler,
        str(compiler),
        "none: engines cannot compile; apt install g++ python3-dev, or measure"
        " eval.engine_modes=[eager] only",
    )


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
            otherwise="note",
        ),
        _judged(
            "W&B",
            "WANDB_API_KEY" in os.environ,
            "WANDB_API_KEY is set: runs with training.trackers=[wandb] are sent there",
            "runs with training.trackers=[wandb] are logged on this disk only; set WANDB_API_KEY",
            otherwise="note",
        ),
        *(_extra(extra, module, use) for extra, (module, use) in extras.items()),
    ]


def _extra(extra: str, module: str, use: str) -> Finding:
    """Whether the packages of an extra, one of which is `module`, are installed."""
    return _judged(
        f"extra {extra}",
        importlib.util.find_spec(module),
        f"for {use}",
        f"needed for {use}; pip install -e '.[{extra}]' in Outrider's checkout",
        otherwise="note",
    )
