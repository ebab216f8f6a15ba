"""Cost by hand."""

import pytest

from outrider.eval.config import CostConfig
from outrider.eval.results.sections import Block, Served, SpeedRow
from outrider.eval.summary import HOURS_A_MONTH, money


def served(none, base, custom):
    speeds = {"none": none, "base": base, "custom": custom}
    blocks = {
        variant: Block.model_construct(tokens_per_s=speed) for variant, speed in speeds.items()
    }
    row = SpeedRow.model_construct(**blocks)
    return {"compiled": Served.model_construct(speed={"8": row})}


def test_cost_and_hours():
    cost = CostConfig(gpu_hour_price=3.6, tokens_per_s=2000.0)
    row = money(served(500.0, 1000.0, 1250.0), cost, gpus=8)["compiled"]["8"]
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
