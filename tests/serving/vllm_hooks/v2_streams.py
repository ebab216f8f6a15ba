"""Prints the captured streams of some prompts; test_v2_runner.py runs it on both model runners.

python -m tests.serving.vllm_hooks.v2_streams TARGET prompts.json out.safetensors
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.speculators.features import FINAL_NORM, layer_name

STREAMS = [FINAL_NORM, *map(layer_name, (2, 8, 13))]


def main() -> None:
    """Prompts longer than a step, more requests than seats."""
    _, directory, file, out = sys.argv
    target, prompts = TargetConfig(model=directory), json.loads(Path(file).read_text())
    small = EngineConfig(max_num_batched_tokens=32, max_num_seqs=4)
    rows = [(str(index), prompt) for index, prompt in enumerate(prompts)]
    with open_engine(target, small) as engine:
        runner = engine.llm.llm_engine.vllm_config.use_v2_model_runner
        states = {row_id: found for row_id, found, _ in engine.prefill(rows, STREAMS)}
    save_file({f"{row}/{name}": states[row][name] for row in states for name in STREAMS}, out)
    print(json.dumps({"v2": runner}))


if __name__ == "__main__":
    main()
