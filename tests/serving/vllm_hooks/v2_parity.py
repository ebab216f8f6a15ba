"""Prints draft parity and one captured sequence; test_v2_runner.py runs it on both model runners.

python -m tests.serving.vllm_hooks.v2_parity TARGET prompts.json
"""

import dataclasses
import json
import sys
from pathlib import Path

from outrider.eval.replay.draft_parity import draft_parity, record
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.config import ParityConfig

K = 3


def main() -> None:
    """Prompts longer than a step, more requests than seats."""
    _, directory, file = sys.argv
    target, prompts = TargetConfig(model=directory), json.loads(Path(file).read_text())
    parity = ParityConfig(max_tokens=24)
    small = EngineConfig(max_num_batched_tokens=32, max_num_seqs=4)
    base = Speculator.named(target.directory())
    spec = base.features(target.directory())
    with open_engine(target, small, Drafting(base, K), extension=DRAFT_EXTENSION) as engine:
        recording = record(engine, spec, prompts, parity.max_tokens)
        runner = engine.llm.llm_engine.vllm_config.use_v2_model_runner
    directory = target.directory()
    found = draft_parity(recording, directory, directory, K, parity)
    states = recording.inputs[0].float()
    steps = [dataclasses.asdict(step) for step in recording.steps]
    print(json.dumps({"v2": runner, "found": found, "states": states.tolist(), "steps": steps}))


if __name__ == "__main__":
    main()
