"""Captured states belong to their request and are what transformers computes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams

from outrider.common.errors import OutriderError
from outrider.serving.engine import Engine
from outrider.speculators.checkpoints.target_ends import load_target_ends

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rows(engine: Engine, prompts: list[list[int]]) -> list[tuple[str, list[int]]]:
    """Prompts with the target's responses: on-policy, some longer than a step's 96 tokens."""
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0.0, max_tokens=160),
        use_tqdm=False,
    )
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    rows = [
        (f"row {i}", prompt + answer)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return [*rows, ("one token", prompts[0][:1]), ("twice", rows[0][1]), ("cut", rows[1][1][:-5])]


@pytest.fixture(scope="module")
def captured(engine: Engine, rows: list[tuple[str, list[int]]]) -> dict[str, torch.Tensor]:
    return dict(engine.prefill(rows, batch_tokens=400))


def test_every_row_comes_back_in_order(
    captured: dict[str, torch.Tensor], rows: list[tuple[str, list[int]]]
) -> None:
    assert [(name, len(hidden_TH)) for name, hidden_TH in captured.items()] == [
        (name, len(ids)) for name, ids in rows
    ]
    assert max(len(ids) for _, ids in rows) > 96, "no prompt was prefilled in chunks"
    assert all(hidden_TH.dtype == torch.bfloat16 for hidden_TH in captured.values())


def test_the_head_on_captured_states_gives_the_engine_s_logprobs(
    engine: Engine,
    nano_r1: Path,
    captured: dict[str, torch.Tensor],
    rows: list[tuple[str, list[int]]],
) -> None:
    head_VH = load_target_ends(nano_r1, torch.bfloat16).lm_head_VH
    for (_, ids), said in zip(rows, engine.prompt_logprobs(rows), strict=True):
        logits_TV = (captured[said.row_id][:-1] @ head_VH.T).float()
        rebuilt_TV = torch.log_softmax(logits_TV, -1)
        rebuilt_T = rebuilt_TV.gather(1, torch.tensor(ids[1:], dtype=torch.long)[:, None])[:, 0]
        torch.testing.assert_close(rebuilt_T, torch.from_numpy(said.logprobs), atol=0.05, rtol=0.02)
        assert (
            rebuilt_TV.argmax(-1) == torch.from_numpy(said.top_tokens)
        ).float().mean() >= 0.99 or len(ids) == 1


def test_the_served_target_computes_what_transformers_computes(
    nano_r1: Path, captured: dict[str, torch.Tensor], rows: list[tuple[str, list[int]]]
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(nano_r1, dtype=torch.float32).eval()
    errors, cosines = [], []
    with torch.inference_mode():
        for name, ids in rows:
            expected_TH = reference.model(torch.tensor([ids])).last_hidden_state[0]
            served_TH = captured[name].float()
            errors.append((served_TH - expected_TH).norm(dim=-1) / expected_TH.norm(dim=-1))
            cosines.append(torch.cosine_similarity(served_TH, expected_TH, dim=-1))
    # Seen in bf16: mean error 0.02. Where rounding changes the routing, single tokens differ much,
    # so the largest error has no bound.
    assert torch.cat(errors).mean() < 0.05
    assert torch.cat(cosines).quantile(0.01) > 0.98


def test_a_sequence_beyond_the_engine_s_length_is_named(engine: Engine) -> None:
    with pytest.raises(OutriderError, match="sequence long: 2048 tokens"):
        list(engine.prefill([("long", [5] * 2048)]))
