"""Records Outrider's files on the stack of every process of a training. Python imports it at start.

PYTHONPATH=tests/pipeline/stack_recorder OUTRIDER_TEST_STACKS=stacks.jsonl outrider train ...

A process writes one line: when it starts the next process of Outrider, or at its first optimizer
step. OUTRIDER_TEST_ROOT is the root of the checkout.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType

MODULES = {"outrider.pipeline.runner", "outrider.training.distributed.worker"}
ADAM = tuple(f"{os.sep}torch{os.sep}optim{os.sep}{name}.py" for name in ("adam", "adamw"))


def _starts_a_process(frame: FrameType) -> bool:
    if frame.f_code is not subprocess.Popen.__init__.__code__:
        return False
    return not MODULES.isdisjoint(frame.f_locals["args"])


def _is_optimizer_step(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(ADAM)


def _files(frame: FrameType | None) -> list[str]:
    """Outrider's files on the stack, outermost first."""
    root = Path(os.environ["OUTRIDER_TEST_ROOT"])
    files = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(root) and ".venv" not in path.parts:
            files.append(str(path.relative_to(root)))
        frame = frame.f_back
    return files[::-1]


RECORDED = {"__init__": _starts_a_process, "step": _is_optimizer_step}


def _profile(frame: FrameType, event: str, _: object) -> None:
    # Millions of calls pass here while torch is imported: look up the name first.
    is_recorded = RECORDED.get(frame.f_code.co_name)
    if event == "call" and is_recorded is not None and is_recorded(frame):
        sys.setprofile(None)
        with Path(os.environ["OUTRIDER_TEST_STACKS"]).open("a", encoding="utf-8") as stacks:
            stacks.write(json.dumps(_files(frame)) + "\n")


if "OUTRIDER_TEST_STACKS" in os.environ:
    sys.setprofile(_profile)
