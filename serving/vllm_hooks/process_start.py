"""Forked instead of spawned engine processes on a CPU: a start takes 3 s of a core instead of 20.

On a CPU, vLLM 0.32 spawns its engine core and its worker, whatever VLLM_WORKER_MULTIPROC_METHOD
is. Each of them imports torch and vLLM again, 8 s of a core. A forked process has them already.

A forked worker keeps the OpenMP library of the process that starts it. GNU's deadlocks in a child
whose parent has run a parallel region; Intel's starts afresh in a child, with the thread settings
that the child's environment has then. So engines are forked where Intel's library is loaded
(stages of the pipeline and servers preload it), or where OUTRIDER_FORK_ENGINES=1 because the
process computes on one thread, as the tests do (OMP_NUM_THREADS=1). OUTRIDER_FORK_ENGINES=0 spawns
them. A forked engine is as fast (benchmarks/results/serving.md, "Forked engines").
"""

import importlib
import multiprocessing
import os
import sys
from multiprocessing.context import BaseContext
from pathlib import Path

from outrider.serving.vllm_hooks.version import runs_on_cpu

FORK = "OUTRIDER_FORK_ENGINES"
"""Environment variable: 1 forks the engine's processes, 0 spawns them."""

FORKING = {FORK: "1", "KMP_AFFINITY": "none"}
"""Environment while an engine is forked. Without the second, Intel's library pins the child to the
first core; vLLM sets it again for its workers."""

_IMPORTERS = (
    "vllm.utils.system_utils",
    "vllm.v1.engine.utils",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
)
"""Modules of vLLM 0.32 that hold `get_mp_context` under their own name."""


def openmp_library() -> Path | None:
    """Intel's OpenMP library, which vLLM's CPU build brings along; None where it is missing."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if library.is_file() else None


def forks_safely() -> bool:
    """Whether this process may fork engines: on a CPU, with Intel's OpenMP loaded."""
    if not runs_on_cpu() or os.environ.get(FORK) == "0":
        return False
    return "libiomp5" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def forking_environment() -> dict[str, str]:
    """Environment in which a process starts that may fork engines; empty where it cannot."""
    library = openmp_library() if runs_on_cpu() else None
    if library is None or os.environ.get(FORK) == "0":
        return {}
    return {"LD_PRELOAD": preloading(library)}


def server_forking() -> dict[str, str]:
    """Environment of a server on a CPU, which preloads the library (engine_environment)."""
    return FORKING if runs_on_cpu() and openmp_library() else {}


def preloading(library: Path) -> str:
    """LD_PRELOAD of this process with `library` added."""
    preloads = [*os.environ.get("LD_PRELOAD", "").split(":"), str(library)]
    return ":".join(dict.fromkeys(path for path in preloads if path))


def drop_forking_environment() -> None:
    """Removes it once this process has started: its children start as they would without it."""
    preloads = os.environ.pop("LD_PRELOAD", "").split(":")
    if others := [path for path in preloads if path != str(openmp_library())]:
        os.environ["LD_PRELOAD"] = ":".join(others)


def fork_context() -> BaseContext:
    """In place of vLLM's `get_mp_context`."""
    return multiprocessing.get_context("fork")


def install() -> None:
    """Makes vLLM fork its processes from now on; may be called more than once."""
    for name in _IMPORTERS:
        module = importlib.import_module(name)
        if not hasattr(module, "get_mp_context"):
            raise ImportError(f"{name} has no get_mp_context: {__name__} was written for vLLM 0.32")
        setattr(module, "get_mp_context", fork_context)  # noqa: B010 (no such attribute for mypy)
