"""A check that fails."""

from pathlib import Path

from outrider.pipeline.gpu_check.check import CheckFailed, Figures


def on_cpu(folder: Path) -> Figures:
    raise CheckFailed("0.3 nats apart, 0.1 allowed")
