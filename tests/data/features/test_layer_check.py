"""The layer check passes right streams and their noise, and fails one layer off, at either end.

test_capture.py runs it on a real engine.
"""

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.features.engine_checks import layer_check, require_layer_check
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, layer_name

LAYERS, HIDDEN = 6, 32
ROWS = [(f"0-{index}", list(range(200)), 100) for index in range(3)]
SPEC = FeatureSpec(tuple(FeatureStream(layer_name(index), HIDDEN) for index in (5, 2, 3)))
WEIGHT_H = torch.rand(HIDDEN, generator=torch.Generator().manual_seed(0)) + 0.5


def norm(state_TH):
    return torch.nn.functional.rms_norm(state_TH.float(), (HIDDEN,), WEIGHT_H, 1e-6)


def residuals(seed: int) -> dict[str, torch.Tensor]:
    """A residual stream: each layer changes it by a fifth or so, the norm follows the last."""
    generator = torch.Generator().manual_seed(seed)
    state_TH, states = torch.randn(200, HIDDEN, generator=generator) * 5, {}
    for index in range(1, LAYERS + 1):
        state_TH = state_TH + torch.randn(200, HIDDEN, generator=generator)
        states[layer_name(index)] = state_TH.bfloat16()
    return states | {FINAL_NORM: norm(state_TH).bfloat16()}


STATES = {row_id: residuals(seed) for seed, (row_id, _, _) in enumerate(ROWS)}


class Engine:
    """Returns the true states but for `wrong`, which changes those of a row by name."""

    def __init__(self, wrong=lambda states, streams: states, noise=0.0):
        self.wrong, self.noise = wrong, noise
        self.batches = []

    def prefill(self, rows, streams, batch_tokens=65536):
        self.batches.append((len(rows), batch_tokens))
        for row_id, token_ids in rows:
            states = self.wrong(dict(STATES[row_id]), streams)
            # What another batch changes: more with every call.
            added = self.noise * len(self.batches)
            yield (
                row_id,
                {
                    name: (states[name] * (1 + added * torch.randn(200, 1)))[: len(token_ids)]
                    for name in streams
                },
                None,
            )


def test_right_streams_pass_with_what_one_layer_off_would_give():
    engine = Engine()
    check = layer_check(engine, ROWS, SPEC, norm, LAYERS)
    require_layer_check(check)
    assert engine.batches == [(3, 65536), (3, 1)]  # together, then each row alone
    assert check.positions == 3 * 170 and check.top_error < 0.01 < 0.1 < check.below_top_error
    assert check.nearest == {"layer_2": 1, "layer_3": 1, "layer_5": 1}
    require_layer_check(layer_check(Engine(noise=0.003), ROWS, SPEC, norm, LAYERS))


def shifted(by):
    """Every stream is the state `by` layers later; the ends repeat."""

    def wrong(states, streams):
        kept = {
            layer_name(index): states[layer_name(min(max(index + by, 1), LAYERS))]
            for index in range(1, LAYERS + 1)
        }
        return kept | {FINAL_NORM: states[FINAL_NORM]}

    return wrong


def in_the_capture_alone(wrong):
    return lambda states, streams: states if FINAL_NORM in streams else wrong(states, streams)


def renamed(one, other):
    return lambda states, streams: states | {one: states[other]}


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
    check = layer_check(Engine(wrong), ROWS, SPEC, norm, LAYERS)
    with pytest.raises(OutriderError, match="counts layers in another way"):
        require_layer_check(check)


INF_1H = torch.full((1, HIDDEN), float("inf")).bfloat16()
