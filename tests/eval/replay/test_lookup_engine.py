"""N-gram lookup in vLLM: its counters against exact replay of the same responses."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from outrider.eval.replay.replay import replay
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, open_engine
from outrider.serving.speculator import Drafting, Speculator
from tests.eval.replay_case import Store
from tests.gpu.inputs import logged_rows

K, LIMIT = 4, 160


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_the_engine_counts_what_replay_predicts(nano_r1: Path, temperature: float) -> None:
    asked = [
        AskedRow(name, token_ids[:start], temperature, 1.0, LIMIT)
        for name, token_ids, start in logged_rows(24)
    ]
    target, few = TargetConfig(model=str(nano_r1)), EngineConfig(max_num_seqs=4, kv_cache_gb=0.25)
    with open_engine(target, few, Drafting(Speculator("ngram"), K)) as engine:

        def counted() -> dict[str, float]:
            return {m.name: m.value for m in engine.llm.get_metrics() if hasattr(m, "value")}

        before = counted()
        answers = engine.answer(asked)
        counters = {name: value - before[name] for name, value in counted().items()}
    store, rows = Store(), []
    for row, answer in zip(asked, answers, strict=True):
        store[row.row_id] = SimpleNamespace(
            token_ids=torch.tensor([*row.token_ids, *answer], dtype=torch.int32),
            hidden=torch.zeros(0),
            completion_start=len(row.token_ids),
        )
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": 0}
        rows.append({"sequence_id": row.row_id, "session": row.row_id, **sampling})
    sums = replay("ngram", nano_r1, store, rows, K)
    steps, tokens = sums.steps_RK[:, K - 1].sum(), sum(len(answer) - 1 for answer in answers)
    accepted = counters["vllm:spec_decode_num_accepted_tokens"]
    predicted = sums.tokens_R.sum() - steps
    print(f"{steps:.0f} steps, {predicted:.0f} accepted, vLLM {accepted:.0f}; {tokens} tokens")
    assert tokens / steps > 1.05
    # A step delivers its accepted drafts and one token; vLLM also counts drafts accepted past the
    # end of a response, at most K, which a response that ends by itself seldom has.
    cut = sum(len(answer) == LIMIT for answer in answers)
    assert predicted <= accepted <= predicted + K * cut + 0.02 * predicted + 1
