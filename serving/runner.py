"""vLLM's model runner of an engine, without starting it.

    runner_of(kind, EngineConfig())     # "v1" or "v2", for a kind of speculators/kinds
    runner_refusal(kind, EngineConfig())

vLLM 0.32 has two model runners, V1 and V2. They draft, verify and schedule differently, so a
comparison of speeds across them also compares the runners. V2 is the default where Triton compiles,
unless vLLM lists an objection; the rule is `use_v2_model_runner` in vllm/config/vllm.py:702.
"""

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.kinds.protocol import DrafterKind, Runner

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Environment variable that chooses the runner, whatever vLLM's objections are."""


def runner_of(kind: DrafterKind, engine: EngineConfig) -> Runner:
    """The model runner of an engine that drafts with `kind`."""
    arguments = engine.extra_arguments | {"pipeline_parallel_size": engine.pipeline_parallel}
    return runner_with(kind, arguments, engine.environment)


def runner_with(
    kind: DrafterKind, arguments: Mapping[str, Any], environment: Mapping[str, str]
) -> Runner:
    """As `runner_of`, from keyword arguments of `vllm.LLM` and changes to the environment."""
    attention = arguments.get("attention_config") or {}
    if attention.get("hisparse_config") is not None:
        return "v2"
    chosen = (os.environ | dict(environment)).get(VARIABLE)
    if chosen is not None:
        if not chosen.strip().isdecimal():
            raise OutriderError(f"{VARIABLE} = {chosen!r}: vLLM reads a number; set it to 0 or 1")
        return "v2" if int(chosen) else "v1"
    if kind.only_runner == "v1" or not compiles_triton():
        return "v1"
    # vllm/config/vllm.py:2919 and 2947
    launched = arguments.get("distributed_executor_backend") == "external_launcher"
    overlapped = arguments.get("enable_dbo") or arguments.get("ubatch_size", 0) > 1
    if overlapped or (launched and arguments.get("pipeline_parallel_size", 1) > 1):
        return "v1"
    return "v2"


def compiles_triton() -> bool:
    """Whether vLLM uses Triton, which V2 needs; a GPU is assumed where vLLM is no CPU build.

    A CPU build uses it only with a CPU backend, which PyPI's Triton does not have
    (vllm/triton_utils/importing.py:40).
    """
    if not runs_on_cpu():
        return True
    backends = importlib.metadata.entry_points(group="triton.backends")
    return "cpu" in backends.names


def runner_refusal(kind: DrafterKind, engine: EngineConfig) -> str | None:
    """Why the engine's runner cannot draft with `kind`; None if it can."""
    runner = runner_of(kind, engine)
    if kind.only_runner in {None, runner}:
        return None
    can = f"vLLM 0.32 drafts with {kind.in_words} in its model runner {kind.only_runner.upper()}"
    if kind.only_runner == "v2":
        return (
            f"{can} only, which needs a GPU, and this engine has V1; run it on a GPU without"
            f" {VARIABLE}=0 and without dual batch overlap, or choose another kind"
        )
    return (
        f"{can} only, and this engine has V2; run it without {VARIABLE}=1, or choose another kind"
    )
