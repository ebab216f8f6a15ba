"""The self-check refuses states with the usual errors; the head has random weights."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.engine_checks import (
    rebuilt_logprobs,
    require_self_check,
    self_check,
)

VOCAB, HIDDEN, LENGTH = 50, 16, 300
GENERATOR = torch.Generator().manual_seed(0)
HEAD = torch.randn(VOCAB, HIDDEN, generator=GENERATOR).to(torch.bfloat16)
STATES = {
    f"0-{index}": torch.randn(LENGTH, HIDDEN, generator=GENERATOR).to(torch.bfloat16)
    for index in range(3)
}
ROWS = [
    (row_id, torch.randint(0, VOCAB, (LENGTH,), generator=GENERATOR).tolist(), 100)
    for row_id in STATES
]


def literal(hidden_TH, token_ids):
    """Position by position, in plain arithmetic."""
    logprobs, tops = [], []
    for position in range(len(token_ids) - 1):
        logits = [
            torch.tensor(
                sum(h * w for h, w in zip(hidden_TH[position].tolist(), row.tolist(), strict=True))
            )
            .to(torch.bfloat16)
            .item()
            for row in HEAD
        ]
        total = math.log(sum(math.exp(logit) for logit in logits))
        logprobs.append(logits[token_ids[position + 1]] - total)
        tops.append(max(range(VOCAB), key=logits.__getitem__))
    return torch.tensor(logprobs), torch.tensor(tops, dtype=torch.int32)


@functools.cache
def true_logprobs(row_id):
    """`literal` of a row's true states."""
    token_ids = {each: ids for each, ids, _ in ROWS}[row_id]
    return literal(STATES[row_id], token_ids)


class Engine:
    """A vLLM engine whose true states are STATES and whose capture returns `captured`."""

    def __init__(self, captured, noise=0.0):
        self.captured, self.noise = captured, noise
        self.batches = []

    def prefill(self, prompts):
        return ((name, {"final_norm": self.captured(STATES[name])}, None) for name, _ in prompts)

    def prompt_logprobs(self, prompts):
        self.batches.append([row_id for row_id, _ in prompts])
        answers = [true_logprobs(row_id) for row_id, _ in prompts]
        # What a kernel adds that depends on the size of its batch.
        added = self.noise * len(prompts)
        return [
            SimpleNamespace(logprobs=logprobs.numpy() + added, top_tokens=tops.numpy())
            for logprobs, tops in answers
        ]


def test_rebuilt_log_probabilities_are_the_literal_ones():
    for row_id, token_ids, _ in ROWS:
        logprobs, tops = rebuilt_logprobs(STATES[row_id], torch.tensor(token_ids), HEAD.float())
        expected, expected_tops = true_logprobs(row_id)
        assert torch.equal(tops.int(), expected_tops)
        torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=0)


def test_right_states_pass():
    check = self_check(Engine(lambda hidden: hidden), ROWS, HEAD)
    require_self_check(check)
    assert check.p99_difference < 1e-4 and check.top1_agreement == 1.0
    assert (check.sequences, check.positions) == (3, 3 * (LENGTH - 1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda hidden: hidden * 1.7,  # before the final norm
        lambda hidden: hidden.roll(1, 0),  # one position off
        lambda hidden: hidden + 0.3 * hidden.roll(1, 1),  # other weights
        lambda hidden: hidden * float("nan"),
    ],
)
def test_wrong_states_stop_the_capture(wrong):
    check = self_check(Engine(wrong), ROWS, HEAD)
    with pytest.raises(OutriderError, match="before the final norm"):
        require_self_check(check)


def test_the_engine_s_own_noise_and_a_margin_are_allowed():
    quiet = Engine(lambda hidden: hidden)
    check = self_check(quiet, ROWS, HEAD)
    assert quiet.batches == [["0-0", "0-1", "0-2"], ["0-2", "0-1"], ["0-0"]]
    assert check.control_p99_difference == 0 and check.control_top1_agreement == 1

    # Log-probabilities are 0.3 nats off in a batch of three, and 0.1 or 0.2 in a smaller one.
    noisy = self_check(Engine(lambda hidden: hidden, noise=0.1), ROWS, HEAD)
    assert noisy.p99_difference == pytest.approx(0.3, abs=1e-3)
    assert noisy.control_p99_difference == pytest.approx(0.2, abs=1e-3)
    with pytest.raises(
        OutriderError, match=r"Allowed are 0.25, the larger of 0.15 and 0.2 \+ 0.05"
    ):
        require_self_check(noisy)
