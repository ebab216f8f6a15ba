"""P-EAGLE in the engine: its drafts are the unroll's, before and after an exchange of the head."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from outrider.eval.replay.draft_parity import complaint, engine_parity
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.config import ParityConfig
from tests.eagle3_head import write_eagle3_head
from tests.serving.conftest import QUESTIONS

K = 5


@pytest.mark.engine
@pytest.mark.slow
def test_drafts_of_exchanged_heads_are_those_of_the_unroll(nano_r1: Path, tmp_path: Path) -> None:
    """Two random heads in turn: with the first one's mask state, the second's drafts differ."""
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in QUESTIONS]
    heads = {
        name: write_eagle3_head(nano_r1, tmp_path / name, seed, layers=[2, 8, 13], pard_token=2)
        for seed, name in enumerate(("first", "second"))
    }
    parity = ParityConfig(max_tokens=24)
    small = EngineConfig(max_num_batched_tokens=96)
    found = engine_parity(TargetConfig(model=str(nano_r1)), small, heads, K, prompts, parity)
    for name in heads:
        assert complaint(found[name], parity) is None, name
        assert len(found[name]["per_depth"]) == K and found[name]["agreement"] > 0.95
