"""Draft parity: the engine's drafts are the trainer's, at every depth (eval/replay)."""

from pathlib import Path

from outrider.pipeline.gpu_check.check import CheckFailed, Figures
from outrider.pipeline.gpu_check.inputs import PARITY, TARGET, K, engine_config, logged_prompts
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.config import ParityConfig


def on_gpu(folder: Path) -> Figures:
    """The engine's drafter and the unroll, on this machine's devices."""
    parity = PARITY.model_copy(update={"prompts": 32, "anchors": 512})
    return compared(TARGET, engine_config(True), parity, logged_prompts(parity.prompts))


def on_cpu(folder: Path) -> Figures:
    """The same with few prompts."""
    return compared(TARGET, engine_config(False), PARITY, logged_prompts(PARITY.prompts))


def compared(
    target: TargetConfig, engine: EngineConfig, parity: ParityConfig, prompts: list[list[int]]
) -> Figures:
    """The figures of the comparison of the target's own MTP layer."""
    from outrider.eval.replay.draft_parity import complaint, engine_parity

    speculators = {"base": target.directory()}
    found = engine_parity(target, engine, speculators, K, prompts, parity)["base"]
    if why := complaint(found, parity):
        raise CheckFailed(why)
    figures = {name: value for name, value in found.items() if isinstance(value, int | float)}
    control = found["control"] or {}
    return figures | {f"engine against itself, {name}": value for name, value in control.items()}
