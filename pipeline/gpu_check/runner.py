"""Runs checks one after another, each in its own process with a time limit.

    outcomes = run_checks(CHECKS, Path("build/gpu_check"), why_no_gpu())

With a GPU the checks run there. Without one each is skipped with the reason, and its twin runs on
the CPU: the same code path as far as a CPU goes.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from outrider.common.files import read_json
from outrider.common.process_tree import ProcessTree
from outrider.pipeline.gpu_check.check import Check, Outcome, Place, Status
from outrider.serving.vllm_hooks.version import runs_on_cpu


def why_no_gpu() -> str:
    """Why GPU checks are skipped here; empty where they can run."""
    if runs_on_cpu():
        return "no GPU: vLLM's CPU build is installed"
    if not shutil.which("nvidia-smi"):
        return "no GPU: nvidia-smi is not there"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "" if listed.stdout.strip() else "no GPU: nvidia-smi lists none"


def run_checks(checks: Iterable[Check], folder: Path, no_gpu: str) -> list[Outcome]:
    """The outcome of each check; without a GPU, two of each: skipped there, and the twin's."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for check in checks:
        if no_gpu:
            outcomes.append(Outcome(check.name, "gpu", "skipped", reason=no_gpu))
        outcomes.append(run_check(check, "cpu" if no_gpu else "gpu", folder))
    return outcomes


def run_check(check: Check, place: Place, folder: Path) -> Outcome:
    """Runs one check in its process; what it leaves running is ended."""
    result, log = folder / f"{check.name}.{place}.json", folder / f"{check.name}.{place}.log"
    result.unlink(missing_ok=True)
    module = "outrider.pipeline.gpu_check.one"
    began = time.monotonic()
    with log.open("wb") as output, ProcessTree() as tree:
        process = subprocess.Popen(
            [sys.executable, "-m", module, check.module, place, str(result.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | tree.environment,
            start_new_session=True,
        )
        try:
            code = process.wait(check.limit_s)
            failure = f"ended with exit status {code} and no result"
        except subprocess.TimeoutExpired:
            failure = f"exceeded its limit of {check.limit_s:g} s"
    process.wait()
    seconds = round(time.monotonic() - began, 1)
    if not result.is_file():
        return Outcome(check.name, place, "fail", seconds, f"{failure}; log: {log}")
    found = read_json(result)
    reason = f"{found['failure']}; log: {log}" if found["failure"] else ""
    status: Status = "fail" if reason else "pass"
    return Outcome(check.name, place, status, seconds, reason, found["figures"])
