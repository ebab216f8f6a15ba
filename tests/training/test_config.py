"""The learning rate at points that are known in closed form."""

import pytest

from outrider.training.config import SCRATCH_RATE, TrainingConfig


def test_warm_up_peak_and_floor() -> None:
    config = TrainingConfig(learning_rate=1.0, scratch_epochs=7)
    rates = [config.learning_rate_at(step, 101) for step in range(101)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert max(rates) == rates[6] == pytest.approx(1.0)
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)
    scratch = config.for_start(warm=False)
    assert (scratch.epochs, scratch.learning_rate) == (7, SCRATCH_RATE)
    assert config.for_start(warm=True) == config
