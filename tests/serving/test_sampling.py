"""Sampled text is the target's, with and without speculation.

For a token x drawn from p, log p(x) minus its expectation under p has mean zero for any prefix. So
over many tokens the mean of that difference, in standard errors, is a standard normal. A sampler
with a wrong temperature or top-p at some positions (vLLM 0.32 on a CPU, see plugin.py) is off by
tens of standard errors.
"""

from pathlib import Path

import pytest
import torch
from vllm import SamplingParams

from outrider.serving.client import Sampling, complete
from outrider.serving.engine import Engine
from outrider.serving.server import Server
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM

pytestmark = pytest.mark.engine

TEMPERATURE = 0.6
TOKENS = 96
REPEATS = 2
TAIL = 1e-4


@pytest.fixture(params=["without speculation", "with speculation"])
def completions(
    request: pytest.FixtureRequest, engine: Engine, prompts: list[list[int]]
) -> list[tuple[list[int], list[int]]]:
    asked = prompts * REPEATS
    if request.param == "with speculation":
        server: Server = request.getfixturevalue("server")
        sampling = Sampling(TEMPERATURE, top_p=1.0)
        return [
            (prompt, done.token_ids)
            for prompt, done in zip(
                asked,
                complete(server.url, server.model_name, asked, sampling, TOKENS),
                strict=True,
            )
        ]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in asked],
        SamplingParams(temperature=TEMPERATURE, max_tokens=TOKENS),
        use_tqdm=False,
    )
    return [
        (list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs
    ]


def test_sampled_tokens_are_as_likely_as_the_target_says(
    completions: list[tuple[list[int], list[int]]], engine: Engine, short_r1: Path
) -> None:
    head_VH = load_target_ends(short_r1).lm_head_VH
    rows = [(str(i), prompt + answer) for i, (prompt, answer) in enumerate(completions)]
    surprises, variances, tails, expected_tails = [], [], [], []
    for (prompt, answer), (_, states, _) in zip(completions, engine.prefill(rows), strict=True):
        logits_TV = states[FINAL_NORM][len(prompt) - 1 : -1].float() @ head_VH.T
        log_p_TV = torch.log_softmax(logits_TV / TEMPERATURE, -1)
        p_TV = log_p_TV.exp()
        log_p_T = log_p_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
        mean_T = (p_TV * log_p_TV).sum(-1)
        surprises.append(log_p_T - mean_T)
        variances.append((p_TV * log_p_TV.square()).sum(-1) - mean_T.square())
        tails.append((log_p_T.exp() < TAIL).float())
        expected_tails.append((p_TV * (p_TV < TAIL)).sum(-1))
    z = torch.cat(surprises).sum() / torch.cat(variances).sum().sqrt()
    assert z.abs() < 4.5, f"log-probabilities are {z:.1f} standard errors from their expectation"
    assert torch.cat(tails).mean() < torch.cat(expected_tails).mean() + 0.01
