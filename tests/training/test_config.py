"""The learning rate at points that are known in closed form."""

import pytest

from outrider.training.config import TrainingConfig


def test_warm_up_peak_and_floor() -> None:
    config = TrainingConfig(learning_rate=1.0, warmup_fraction=0.05)
    rates = [config.learning_rate_at(step, 101) for step in range(101)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert max(rates) == rates[6] == pytest.approx(1.0)
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)
    no_warmup = TrainingConfig(learning_rate=1.0, warmup_fraction=0.0)
    assert no_warmup.learning_rate_at(0, 1) == 1.0
