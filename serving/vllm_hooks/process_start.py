"""Forked instead of spawned engine processes on a CPU: a start takes 3 s instead of 20.

On a CPU, vLLM 0.32 spawns its engine core and its worker, whatever VLLM_WORKER_MULTIPROC_METHOD
is. Each of them imports torch and vLLM again, 8 s of a core. A forked process has them already.

Off by default: a forked worker keeps the OpenMP library and the number of threads of the process
that starts it, and libgomp deadlocks in a child whose parent has run a parallel region. Set
OUTRIDER_FORK_ENGINES=1 only where that process computes on one thread, as the tests do
(OMP_NUM_THREADS=1). Servers that are measured are spawned, as users start them: a forked one is
ready in 12.5 s instead of 25.4, but decodes 7 to 11 % fewer tokens/s on two threads.
"""

import importlib
import multiprocessing
from multiprocessing.context import BaseContext

FORK = "OUTRIDER_FORK_ENGINES"
"""Environment variable: 1 forks the engine's processes."""

_IMPORTERS = (
    "vllm.utils.system_utils",
    "vllm.v1.engine.utils",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
)
"""Modules of vLLM 0.32 that hold `get_mp_context` under their own name."""


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
