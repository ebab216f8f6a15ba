"""Compiles the target in the background, at the lowest priority, while other stages run.

    with compiling(target, serving, log_path=Path("compile.log")):
        ...         # capture and training; single-threaded phases leave a core idle

On a CPU, torch.compile takes a server of nano R1 104 s of one core, and 25 s when it finds the
graph in its cache (`TORCHINDUCTOR_CACHE_DIR`, by content). So a server starts here for its cache
entries alone. On a GPU the stages need all of its memory, and nothing starts.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import Server
from outrider.serving.vllm_hooks.version import runs_on_cpu


@contextlib.contextmanager
def compiling(target: TargetConfig, serving: ServingConfig, log_path: Path) -> Iterator[None]:
    """Runs a compiled server without speculation at the lowest priority, until the context ends."""
    if not runs_on_cpu() or target.on_hub:
        yield
        return
    server = Server(target, serving.with_engine(mode="compiled"), log_path=log_path)
    server.start(lowest_priority=True)
    try:
        yield
    finally:
        server.stop(at_once=True)
