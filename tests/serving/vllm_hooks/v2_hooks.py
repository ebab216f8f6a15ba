"""Draft parity and captured states of some prompts; test_v2_runner.py runs it on both runners.

python -m tests.serving.vllm_hooks.v2_hooks TARGET prompts.json streams.safetensors
"""

import dataclasses
import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from outrider.eval.replay.draft_parity import draft_parity, record
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.features import FINAL_NORM, layer_name
from outrider.speculators.parity import ParityConfig
from tests.serving.in_process import swap

K = 3
STREAMS = [FINAL_NORM, *map(layer_name, (2, 8, 13))]


def main() -> None:
    """Prompts longer than a step, more requests than seats."""
    _, directory, file, out = sys.argv
    target = TargetConfig(model=directory)
    prompts = json.loads(Path(file).read_text())
    directory = target.directory()
    parity = ParityConfig(max_tokens=24)
    small = EngineConfig(max_num_batched_tokens=32, max_num_seqs=4)
    base = Speculator.from_name(directory)
    spec = base.features(directory)
    with open_engine(target, small, Drafting(base, K), extension=DRAFT_EXTENSION) as engine:
        swap(engine, directory, directory, directory)
        recording = record(engine, spec, prompts, parity.max_tokens)
        runner = engine.llm.llm_engine.vllm_config.use_v2_model_runner
    rows = [(str(index), prompt) for index, prompt in enumerate(prompts[:4])]
    with open_engine(target, small) as engine:
        prefilled = list(engine.prefill(rows, STREAMS))
    states = {row_id: of_row.streams for (row_id, _), of_row in prefilled}
    save_file({f"{row}/{name}": states[row][name] for row in states for name in STREAMS}, out)
    found = draft_parity(
        recording=recording, speculator_dir=directory, target_dir=directory, k=K, parity=parity
    )
    steps = [dataclasses.asdict(step) for step in recording.steps]
    inputs = recording.inputs[0].float().tolist()
    print(json.dumps({"v2": runner, "found": found, "states": inputs, "steps": steps}))


if __name__ == "__main__":
    main()
