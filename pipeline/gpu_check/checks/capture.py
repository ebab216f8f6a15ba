"""Capture self-check: log-probabilities rebuilt from captured states are the engine's.

Also measures capture's prefill in tokens/s.
"""

import time
from pathlib import Path

from outrider.pipeline.gpu_check.check import Figures
from outrider.pipeline.gpu_check.inputs import TARGET, engine_config, logged_rows


def on_gpu(folder: Path) -> Figures:
    """256 exchanges."""
    return _checked(folder, gpu=True, sample=32, rows=256)


def on_cpu(folder: Path) -> Figures:
    """8 exchanges."""
    return _checked(folder, gpu=False, sample=4, rows=8)


def _checked(folder: Path, gpu: bool, sample: int, rows: int) -> Figures:
    from outrider.data.config import CaptureConfig
    from outrider.data.features.self_check import require, self_check
    from outrider.serving.engine import open_engine
    from outrider.speculators.checkpoints.target_ends import load_target_ends

    logged = logged_rows(rows)
    with open_engine(TARGET, engine_config(gpu), scratch=folder) as engine:
        head = load_target_ends(TARGET.directory()).lm_head_VH
        found = self_check(engine, logged[:sample], head)
        began = time.monotonic()
        tokens = sum(len(hidden_TH) for _, hidden_TH in engine.prefill([row[:2] for row in logged]))
        seconds = time.monotonic() - began
    require(found, CaptureConfig())
    return {**found.as_dict(), "capture_tokens_per_s": tokens / seconds}
