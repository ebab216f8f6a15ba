"""EAGLE-3 heads and n-gram lookup draft for nano R1 and leave its greedy text unchanged."""

import pytest

from outrider.serving.config import EngineConfig
from outrider.serving.engine import AskedRow, open_engine
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.compatibility import check_speculator
from tests.eagle3_head import write_eagle3_head


@pytest.mark.engine
@pytest.mark.parametrize(
    "kind",
    [
        "eagle3",
        pytest.param("eagle3, MLA", marks=pytest.mark.slow),
        pytest.param("ngram", marks=pytest.mark.slow),
    ],
)
def test_it_drafts_and_the_text_is_the_same(engine, target, prompts, k, tmp_path, kind):
    rows = [AskedRow(str(n), prompt, 0.0, 1.0, 40) for n, prompt in enumerate(prompts)]
    without = engine.answer(rows)
    speculator, environment = Speculator.named("ngram"), {}
    if kind != "ngram":
        head = write_eagle3_head(target.directory(), tmp_path / "head", mla=kind == "eagle3, MLA")
        check_speculator(head, target.directory())
        speculator = Speculator.named(head)
    if kind == "eagle3, MLA":  # one cache for both: the target's attention must be MLA too
        environment = {"VLLM_MLA_DISABLE": "0"}
    settings = EngineConfig(kv_cache_gb=0.25, environment=environment)
    with open_engine(target, settings, speculator, k) as speculating:
        answers = speculating.answer(rows)
        counted = {
            metric.name: metric.value
            for metric in speculating.llm.get_metrics()
            if hasattr(metric, "value")
        }
    assert counted["vllm:spec_decode_num_drafts"] > 0
    equal = sum(a == b for a, b in zip(without, answers, strict=True))
    assert equal >= len(rows) - 1, "more than one near tie differs"
    if kind == "ngram":  # nano R1 repeats its prompt, so lookups must hit
        assert counted["vllm:spec_decode_num_accepted_tokens"] > 0
