"""How long a step of the engine takes, for every number of drafts and several batch sizes: what each draft costs on this machine.

One engine runs in a process of its own (an engine binds its process to cores), with a schedule of drafts by batch size that is
exchanged between short runs of steps: all numbers of drafts meet the same requests, weights and moments of a shared machine.

    times = measure_step_times(target, engine, speculator_dir, depth=4, batch_sizes=[1, 4, 8], prompts=prompts, sampling=Sampling())
    times[4][2]      # seconds of a step of four requests that drafts 2 tokens for each and verifies 2

Without drafts (k = 0) the drafter rests altogether, as if there were none.

Shapes: B batch sizes, K depth.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import DRAFTER_EXTENSION, engine_arguments, engine_environment
from outrider.serving.processes import Family
from outrider.speculators.errors import OutriderError

STEPS = 6
"""Timed steps of a run."""

SETTLE = 3
"""Steps before them: the first still verifies as many drafts as were made before."""

ROUNDS = 3
"""Runs of each number of drafts and batch size; their median counts."""


def measure_step_times(
    target: TargetConfig,
    engine: EngineConfig,
    speculator_dir: Path,
    depth: int,
    batch_sizes: Sequence[int],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    draft_sample_method: str = "greedy",
    log_path: Path = Path("step_times.log"),
) -> dict[int, list[float]]:
    """Seconds of a decoding step by batch size, for k = 0..depth drafts. Prompts are token ids, taken in turn; what is longer than the
    engine's room is cut at its beginning."""
    room = engine.max_model_len - ROUNDS * (depth + 1) * (STEPS + SETTLE) * (depth + 1) - 2
    if room < 1:
        raise OutriderError(
            f"serving.engine.max_model_len = {engine.max_model_len}: too short to time steps of up to {depth} drafts; raise it by "
            f"{1 - room}, or set eval.k"
        )
    schedule = [(1, engine.max_num_seqs, depth)]
    order = {
        "arguments": engine_arguments(target, engine, speculator_dir, depth, draft_sample_method, schedule),
        "depth": depth,
        "batch_sizes": list(batch_sizes),
        "prompts": [list(prompt)[-room:] for prompt in prompts],
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
    }
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.touch(mode=0o600)
    with Family() as family, log_path.open("ab") as log:
        # The engine's scheduler must live in the child itself, where the schedule can be exchanged.
        environment = engine_environment(engine) | family.environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        finished = subprocess.run(
            [sys.executable, "-m", "outrider.serving.step_times"],
            env=os.environ | environment,
            input=json.dumps(order),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    if finished.returncode:
        end = "\n".join(log_path.read_text(errors="replace").splitlines()[-25:])
        raise OutriderError(f"timing the engine's steps ended with code {finished.returncode}; {log_path} ends:\n{end}")
    return {int(size): times for size, times in json.loads(finished.stdout).items()}


def _child() -> None:
    """Reads the order, and writes the times as JSON."""
    order = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints belongs in the log
    from vllm import LLM

    engine = LLM(**order["arguments"], worker_extension_cls=DRAFTER_EXTENSION).llm_engine
    times = {
        size: _time_batch(engine, size, order["depth"], order["prompts"], order["sampling"])
        for size in order["batch_sizes"]
    }
    print(json.dumps(times), file=answer, flush=True)


def _time_batch(
    engine: Any, size: int, depth: int, prompts: Sequence[Sequence[int]], sampling: dict[str, float]
) -> list[float]:
    """Median seconds of a step of `size` requests, for 0..depth drafts."""
    from vllm import SamplingParams

    names = [f"{size}-{number}" for number in range(size)]
    for number, name in enumerate(names):
        prompt = {"prompt_token_ids": prompts[number % len(prompts)]}
        endless = SamplingParams(**sampling, max_tokens=10**6, ignore_eos=True, detokenize=False)
        engine.add_request(name, prompt, endless)
    begun: set[str] = set()
    while len(begun) < size:  # until every prompt is prefilled
        begun |= {output.request_id for output in engine.step() if output.outputs[0].token_ids}
    scheduler = engine.engine_core.engine_core.scheduler
    runs: dict[int, list[float]] = {k: [] for k in range(depth + 1)}
    for turn in range(ROUNDS):
        for place in range(depth + 1):
            k = (place + turn) % (depth + 1)
            engine.collective_rpc("rest_drafter", args=(k == 0,))
            scheduler.dynamic_sd_lookup[:] = [k] * len(scheduler.dynamic_sd_lookup)
            for _ in range(SETTLE):
                engine.step()
            drafted = {len(request.spec_token_ids) for request in scheduler.running}
            if drafted != {k} or len(scheduler.running) != size:
                raise RuntimeError(f"{len(scheduler.running)} of {size} requests run, with {drafted} drafts, not {k}")
            began = time.perf_counter()
            for _ in range(STEPS):
                engine.step()
            runs[k].append((time.perf_counter() - began) / STEPS)
    engine.collective_rpc("rest_drafter", args=(False,))
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return [statistics.median(runs[k]) for k in range(depth + 1)]


if __name__ == "__main__":
    _child()
