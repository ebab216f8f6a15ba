"""Sampled text is the target's, with and without speculation.

For a token x drawn from p, log p(x) minus its expectation under p has mean zero for any prefix. So
over many tokens the mean of that difference, in standard errors, is a standard normal. A sampler
with a wrong temperature or top-p at some positions (vLLM 0.32 on a CPU, see plugin.py) is off by
tens of standard errors.
"""

import pytest
import torch

from outrider.serving.client import Sampling, complete
from outrider.serving.engine import AskedRow
from outrider.serving.server import Server
from outrider.speculators.checkpoints.target_ends import load_target_ends

pytestmark = pytest.mark.engine

TEMPERATURE = 0.6
TOKENS = 96
REPEATS = 2
TAIL = 1e-4


@pytest.mark.parametrize("speculation", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sampled_tokens_are_as_likely_as_the_target_says(
    request, engine, prompts, short_r1, speculation
):
    asked = prompts * REPEATS
    if speculation:
        server: Server = request.getfixturevalue("server")
        sampling = Sampling(TEMPERATURE, top_p=1.0)
        done = complete(
            url=server.url,
            model=server.model_name,
            prompts=asked,
            sampling=sampling,
            max_tokens=TOKENS,
        )
        answers = [each.token_ids for each in done]
    else:
        rows = [
            AskedRow(
                row_id=str(i),
                token_ids=prompt,
                temperature=TEMPERATURE,
                top_p=1.0,
                max_tokens=TOKENS,
            )
            for i, prompt in enumerate(asked)
        ]
        answers = engine.answer(rows)
    head_VH = load_target_ends(short_r1).lm_head_VH
    whole = [(str(i), asked[i] + answer) for i, answer in enumerate(answers)]
    surprises = []
    variances = []
    tails = []
    expected_tails = []
    prefilled = zip(asked, answers, engine.prefill(whole), strict=True)
    for prompt, answer, (_, states) in prefilled:
        logits_TV = states.hidden[len(prompt) - 1 : -1].float() @ head_VH.T
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
