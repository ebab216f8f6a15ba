"""Block verification against vLLM's standard rejection sampling, with probabilistic drafts.

In vLLM 0.32 only model runner V2 has it (v1/worker/gpu/spec_decode/rejection_sampler.py:174), which
needs Triton. V1's sampler, a CPU's, ignores `rejection_sample_method: block` without a word.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.serving.client import Sampling, complete
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from tests.gpu.inputs import NANO, K, engine_config, logged_prompts

TOKENS = 128


class BlockDrafting(Drafting):
    """Drafts that are verified together (Sun et al., arXiv 2403.10444)."""

    def settings(self) -> dict[str, Any] | None:
        settings = super().settings()
        return None if settings is None else settings | {"rejection_sample_method": "block"}


@pytest.mark.gpu
@pytest.mark.engine
def test_block_verification_accepts_no_less(
    gpu: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its expected acceptance is at least the standard one's; greedy responses stay the same."""
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_MLA_DISABLE": "1"}
    engine = engine_config(True, environment=environment)
    prompts = logged_prompts(64)
    lengths: dict[str, float] = {}
    texts: list[list[list[int]]] = []
    for name, drafting in (("standard", Drafting), ("block", BlockDrafting)):
        drafts = drafting(Speculator.named(NANO.directory()), K, "probabilistic")
        with Server(NANO, engine, drafts, log_path=tmp_path / f"{name}.log") as server:
            before = server.counters()
            complete(server.url, server.model_name, prompts, Sampling(0.8, 1.0), TOKENS, 16)
            lengths[name] = (server.counters() - before).acceptance_length
            record_property(f"acceptance_length_{name}", lengths[name])
            greedy = complete(
                server.url, server.model_name, prompts[:8], Sampling(0.0, 1.0), TOKENS, 1
            )
            texts.append([response.token_ids for response in greedy])
    assert lengths["block"] > 0.97 * lengths["standard"]
    assert sum(a == b for a, b in zip(*texts, strict=True)) >= 7
