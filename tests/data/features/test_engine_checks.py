"""The checks of captured states pass right ones with their noise, and refuse the usual errors.

on_policy/test_check.py runs them on a real engine.
"""

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.engine_checks import (
    layer_check,
    require_layer_check,
    require_self_check,
    self_check,
)
from outrider.speculators.features import (
    FINAL_NORM,
    FeatureSpec,
    FeatureStream,
    SequenceStates,
    layer_name,
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


@functools.cache
def true_logprobs(row_id):
    """Of a row's true states: position by position, in plain arithmetic."""
    hidden_TH = STATES[row_id]
    token_ids = {name: ids for name, ids, _ in ROWS}[row_id]
    logprobs = []
    tops = []
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


class Engine:
    """A vLLM engine whose true states are STATES and whose capture returns `captured`."""

    def __init__(self, captured, noise=0.0):
        self.captured, self.noise = captured, noise
        self.batches = []

    def prefill(self, prompts):
        for name, token_ids in prompts:
            streams = {FINAL_NORM: self.captured(STATES[name])}
            yield (name, token_ids), SequenceStates(torch.tensor(token_ids), 0, streams)

    def prompt_logprobs(self, prompts):
        self.batches.append([row_id for row_id, _ in prompts])
        # What a kernel adds that depends on the size of its batch.
        added = self.noise * len(prompts)
        return [
            SimpleNamespace(logprobs=logprobs.numpy() + added, top_tokens=tops.numpy())
            for logprobs, tops in map(true_logprobs, self.batches[-1])
        ]


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


def test_right_states_pass_with_the_engine_s_own_noise_and_a_margin():
    quiet = Engine(lambda hidden: hidden)
    check = self_check(quiet, ROWS, HEAD)
    require_self_check(check)
    # The rebuilt log-probabilities are the literal ones.
    assert check.p99_difference < 2e-5 and check.top1_agreement == 1.0
    assert (check.sequences, check.positions) == (3, 3 * (LENGTH - 1))
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


LAYERS, WIDTH = 6, 32
SAMPLE = [(f"0-{index}", list(range(200)), 100) for index in range(3)]
SPEC = FeatureSpec(tuple(FeatureStream(layer_name(index), WIDTH) for index in (5, 2, 3)))
WEIGHT_H = torch.rand(WIDTH, generator=torch.Generator().manual_seed(0)) + 0.5


def norm(state_TH):
    return torch.nn.functional.rms_norm(state_TH.float(), (WIDTH,), WEIGHT_H, 1e-6)


def residuals(seed: int) -> dict[str, torch.Tensor]:
    """A residual stream: each layer changes it by a fifth or so, the norm follows the last."""
    generator = torch.Generator().manual_seed(seed)
    state_TH = torch.randn(200, WIDTH, generator=generator) * 5
    states = {}
    for index in range(1, LAYERS + 1):
        state_TH = state_TH + torch.randn(200, WIDTH, generator=generator)
        states[layer_name(index)] = state_TH.bfloat16()
    return states | {FINAL_NORM: norm(state_TH).bfloat16()}


RESIDUALS = {row_id: residuals(seed) for seed, (row_id, _, _) in enumerate(SAMPLE)}


class LayerEngine:
    """Returns the true states but for `wrong`, which changes those of a row by name."""

    def __init__(self, wrong=lambda states, streams: states, noise=0.0):
        self.wrong, self.noise = wrong, noise
        self.batches = []

    def prefill(self, rows, streams, batch_tokens=65536):
        self.batches.append((len(rows), batch_tokens))
        for row_id, token_ids in rows:
            states = self.wrong(dict(RESIDUALS[row_id]), streams)
            # What another batch changes: more with every call.
            added = self.noise * len(self.batches)
            by_name = {
                name: (states[name] * (1 + added * torch.randn(200, 1)))[: len(token_ids)]
                for name in streams
            }
            yield (row_id, token_ids), SequenceStates(torch.tensor(token_ids), 0, by_name)


def test_right_streams_pass_with_what_one_layer_off_would_give():
    engine = LayerEngine()
    check = layer_check(engine=engine, rows=SAMPLE, spec=SPEC, norm=norm, layers=LAYERS)
    require_layer_check(check)
    assert engine.batches == [(3, 65536), (3, 1)]  # together, then each row alone
    assert check.positions == 3 * 170 and check.top_error < 0.01 < 0.1 < check.below_top_error
    assert check.nearest == {"layer_2": 1, "layer_3": 1, "layer_5": 1}
    require_layer_check(
        layer_check(
            engine=LayerEngine(noise=0.003), rows=SAMPLE, spec=SPEC, norm=norm, layers=LAYERS
        )
    )


def shifted(by):
    """Every stream is the state `by` layers later; the ends repeat."""

    def wrong(states, streams):
        layers = {
            layer_name(index): states[layer_name(min(max(index + by, 1), LAYERS))]
            for index in range(1, LAYERS + 1)
        }
        return layers | {FINAL_NORM: states[FINAL_NORM]}

    return wrong


def in_the_capture_alone(wrong):
    return lambda states, streams: states if FINAL_NORM in streams else wrong(states, streams)


def renamed(stream, original):
    return lambda states, streams: states | {stream: states[original]}


@pytest.mark.parametrize(
    "wrong",
    [
        shifted(-1),  # a vLLM that counts from another layer
        in_the_capture_alone(shifted(1)),
        in_the_capture_alone(shifted(-1)),
        in_the_capture_alone(renamed("layer_2", "layer_5")),  # another order
        renamed("layer_3", "layer_4"),  # a buffer that the next layer overwrote
        in_the_capture_alone(lambda s, _: {name: x.roll(1, 0) for name, x in s.items()}),
        lambda states, _: states | {FINAL_NORM: states[FINAL_NORM].roll(1, 0)},
        lambda states, _: states | {"layer_3": states["layer_3"] * float("nan")},
        lambda states, _: states | {"layer_3": torch.cat([states["layer_3"][:-1], INF_1H])},
        lambda states, _: states | {layer_name(LAYERS): states[FINAL_NORM]},  # after the norm
    ],
)
def test_wrong_streams_stop_the_capture(wrong):
    check = layer_check(engine=LayerEngine(wrong), rows=SAMPLE, spec=SPEC, norm=norm, layers=LAYERS)
    with pytest.raises(OutriderError, match="counts layers differently"):
        require_layer_check(check)


INF_1H = torch.full((1, WIDTH), float("inf")).bfloat16()
