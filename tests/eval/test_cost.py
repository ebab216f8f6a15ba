"""Cost by hand."""

import pytest

from outrider.eval.config import CostConfig
from outrider.eval.cost import HOURS_A_MONTH, money
from outrider.eval.results.speed import Block, Served, SpeedRow


def served(none, base, custom):
    speeds = {"none": none, "base": base, "custom": custom}
    blocks = {
        variant: Block.model_construct(tokens_per_s=speed) for variant, speed in speeds.items()
    }
    row = SpeedRow.model_construct(**blocks)
    return {"compiled": Served.model_construct(speed={"8": row})}


def test_cost_savings_and_break_even():
    cost = CostConfig(gpu_hour_price=3.6, gpus=8, tokens_per_s=2000.0, training_gpu_hours=50)
    row = money(served(500.0, 1000.0, 1250.0), cost)["compiled"]["8"]
    # 8 GPUs at 3.6 an hour are 0.008 a second.
    assert row.per_million_tokens.model_dump() == pytest.approx(
        {"none": 16.0, "base": 8.0, "custom": 6.4}
    )
    assert row.gpu_hours_a_month.model_dump() == pytest.approx(
        {
            "none": 4 * 8 * HOURS_A_MONTH,
            "base": 2 * 8 * HOURS_A_MONTH,
            "custom": 1.6 * 8 * HOURS_A_MONTH,
        }
    )
    # 180 spent, 1.6 saved a million tokens.
    assert row.break_even_tokens == pytest.approx(180 / 1.6e-6)


def test_a_slower_speculator_never_pays():
    cost = CostConfig(gpu_hour_price=2.0, tokens_per_s=100.0, training_gpu_hours=1)
    row = money(served(100.0, 100.0, 80.0), cost)["compiled"]["8"]
    assert row.break_even_tokens is None


def test_what_is_not_given_is_not_reckoned():
    row = money(served(100.0, 100.0, 180.0), CostConfig(gpu_hour_price=2.0))["compiled"]["8"]
    given = {name for name, value in row if value is not None}
    assert given == {"per_million_tokens"}
