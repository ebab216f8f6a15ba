"""vLLM's walk over the block of a DSpark head drafts what the unroll drafts, also after a swap.

Model runner V2 alone has it (vLLM 0.32, `_get_v1_model_runner_unsupported_features`). On a CPU
tests/serving/vllm_hooks/test_v2_runner.py runs it in Triton's interpreter.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.speculators.parity import complaint, in_words
from tests.gpu.inputs import NANO, RANDOM_PARITY, engine_config, logged_prompts
from tests.serving.vllm_hooks.v2_dspark import parities


@pytest.mark.gpu
@pytest.mark.engine
def test_a_dspark_head_drafts_as_its_unroll(
    gpu: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_MLA_DISABLE": "1"}
    engine = engine_config(True, environment=environment)
    prompts = logged_prompts(RANDOM_PARITY.prompts)
    found = parities(NANO, engine, tmp_path, prompts, RANDOM_PARITY)
    for name in ("first", "second"):
        record_property(name, in_words(found[name]))
        assert complaint(found[name], RANDOM_PARITY) is None
    assert complaint(found["crossed"], RANDOM_PARITY) is not None
