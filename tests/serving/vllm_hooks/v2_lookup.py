"""Steps of n-gram lookup in an engine, and of its replay; test_v2_runner.py runs it on V2.

python -m tests.serving.vllm_hooks.v2_lookup TARGET prompts.json
"""

import json
import sys
from pathlib import Path

import numpy as np

from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, Engine, open_engine
from outrider.serving.runner import runner_of
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.protocol import Lookup

K, LIMIT = 3, 32
DRAFTS = "vllm:spec_decode_num_drafts"


def counted(engine: Engine) -> float:
    """Steps with drafts since the engine's start."""
    return next(metric.value for metric in engine.llm.get_metrics() if metric.name == DRAFTS)


def main() -> None:
    """More requests than seats, sampled."""
    _, directory, file = sys.argv
    prompts = json.loads(Path(file).read_text())
    target = TargetConfig(model=directory)
    small = EngineConfig(max_num_seqs=4)
    speculator = Speculator("ngram")
    rows = [
        AskedRow(row_id=str(n), token_ids=prompt, temperature=0.6, top_p=1.0, max_tokens=LIMIT)
        for n, prompt in enumerate(prompts)
    ]
    with open_engine(target, small, Drafting(speculator, K)) as engine:
        before = counted(engine)
        answers = engine.answer(rows)
        steps = counted(engine) - before
        config = engine.llm.llm_engine.vllm_config
    texts = [
        LoggedText(
            sequence_id=row.row_id,
            session="",
            user="",
            token_ids_T=np.array([*row.token_ids, *answer], np.int32),
            completion_start=len(row.token_ids),
        )
        for row, answer in zip(rows, answers, strict=True)
    ]
    replayed = {
        runner: lookup_sums(Lookup("ngram", runner=runner), texts).steps_RK[:, K - 1].sum()
        for runner in ("v1", "v2")
    }
    method = config.speculative_config.method
    runner = "v2" if config.use_v2_model_runner else "v1"
    assert runner == runner_of(speculator.drafter_kind, small)
    print(json.dumps({"runner": runner, "method": method, "steps": steps, "replayed": replayed}))


if __name__ == "__main__":
    main()
