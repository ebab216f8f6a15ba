"""Sums over a completion are the same for any division of its prefill into steps."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.serving.logged_text import (
    FIT_EVERY,
    HEAD,
    Claim,
    RequestSlice,
    ScoredCompletion,
    checked_positions,
    score_step,
)
from outrider.serving.token_scores import COLUMNS, token_scores
from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from tests.fuzzing import examples

VOCAB, HIDDEN, LENGTH = 40, 6, 60
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(VOCAB, HIDDEN, generator=GENERATOR)
STATES = [torch.randn(LENGTH, HIDDEN, generator=GENERATOR) for _ in range(2)]
TOKENS = [torch.randint(0, VOCAB, (LENGTH,), generator=GENERATOR).tolist() for _ in range(2)]
CLAIMS = [Claim(11, 0.6, 0.95, 1000, grammar="{}"), Claim(40, 1.0, 1.0, 1000, top_k=7)]
ALLOWED = torch.rand(LENGTH - 11, VOCAB, generator=GENERATOR) < 0.5
ALLOWED[range(LENGTH - 11), TOKENS[0][11:]] = True
ALLOWED[:5] = True
"""Tokens that the first text's grammar allows; it has begun to apply after five tokens."""
BITS = (ALLOWED.long() << torch.arange(VOCAB)).sum(1)
MASKS = TokenMasks(BITS[:, None].view(torch.int32), torch.arange(LENGTH - 11))


def head(hidden_NH):
    return hidden_NH @ WEIGHT.T


def literal(which):
    """Position by position."""
    claim = CLAIMS[which]
    sums_PC = torch.zeros(2, len(COLUMNS), dtype=torch.float64)
    for position in range(claim.completion_start, LENGTH):
        sampling = torch.tensor([[claim.temperature], [claim.top_p], [claim.top_k]])
        logits_1V = head(STATES[which][None, position - 1])
        if which == 0:
            logits_1V = logits_1V.masked_fill(~ALLOWED[position - 11], -1e4)
        token_1 = torch.tensor([TOKENS[which][position]])
        part = 0 if position < claim.completion_start + HEAD else 1
        fit_1 = torch.tensor([(position - claim.completion_start) % FIT_EVERY == 0])
        sums_PC[part] += token_scores(logits_1V, token_1, *sampling, fit_N=fit_1)[0].double()
    return sums_PC


@examples(20)
@given(cuts=st.lists(st.integers(1, 25), min_size=1, max_size=30), again=st.integers(0, 5))
def test_any_cut_into_steps_gives_the_same_sums(cuts, again):
    texts = [ScoredCompletion(TOKENS[0], CLAIMS[0], MASKS), ScoredCompletion(TOKENS[1], CLAIMS[1])]
    start = 0
    for number, size in enumerate([*cuts, LENGTH]):
        size = min(size, LENGTH - start)
        if not size:
            break
        begin = (
            max(start - 7, 0) if number == again else start
        )  # a preempted request computes its positions again
        size += start - begin
        hidden_NH = torch.cat([states[begin : begin + size] for states in STATES])
        steps = [
            RequestSlice(text, row=which * size, start=begin, tokens=size)
            for which, text in enumerate(texts)
        ]
        score_step(steps, hidden_NH, head, VOCAB, keep=True)
        start = begin + size
    for which, text in enumerate(texts):
        torch.testing.assert_close(text.sums_PC, literal(which), atol=1e-3, rtol=1e-5)


def test_a_rank_that_keeps_nothing_still_calls_the_head():
    text = ScoredCompletion(TOKENS[0], CLAIMS[0], MASKS)
    asked = []
    score_step(
        [RequestSlice(text, 0, 0, LENGTH)],
        STATES[0],
        lambda hidden: asked.append(len(hidden)),
        VOCAB,
        keep=False,
    )
    assert asked == [LENGTH - 11] and not text.sums_PC.any()


def test_a_completion_without_usable_masks_is_not_scored():
    text = ScoredCompletion(TOKENS[0], CLAIMS[0])
    score_step([RequestSlice(text, 0, 0, LENGTH)], STATES[0], head, VOCAB, keep=True)
    assert not text.sums_PC.any()


def test_a_long_completion_is_checked_at_its_head_and_evenly():
    positions = checked_positions(100, 10_100, 50)
    assert positions[: HEAD + 1].tolist() == [*range(100, 100 + HEAD), 300]
    assert len(positions) == 50 + HEAD - 1 and np.diff(positions[HEAD - 1 :]).max() == 200
    for start, end, limit, first in (
        (100, 150, 50, 100),
        (100, 105, 3, 100),
        (0, 3, 50, 1),  # nothing precedes the first token
    ):
        assert checked_positions(start, end, limit).tolist() == list(range(first, end))
