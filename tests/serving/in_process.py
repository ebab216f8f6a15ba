"""Swaps of an in-process engine, which in the product only servers do."""

from pathlib import Path

from outrider.serving.admin.swap import swap_directory
from outrider.serving.engine import Engine


def swap(engine: Engine, directory: Path, started_with: Path, target_dir: Path) -> None:
    """Loads the speculator of `directory` into an engine that was started with another."""
    swap_directory(
        lambda method, arguments: engine.llm.collective_rpc(method, kwargs=arguments),
        directory,
        started_with,
        target_dir,
    )
