"""What speed is worth: cost of a million tokens, GPU-hours of a month at the throughput that is wanted, and when the training has paid.

    money(served, CostConfig(gpu_hour_price=2.5, gpus=8, tokens_per_s=20000, training_gpu_hours=40))

An endpoint that delivers s tokens/s on g GPUs costs g * price / 3600 / s a token; n tokens/s want n / s such endpoints.
"""

from collections.abc import Mapping
from typing import Any

from outrider.eval.config import CostConfig

HOURS_A_MONTH = 730
VARIANTS = ("none", "base", "custom")


def money(served: Mapping[str, Any], cost: CostConfig) -> dict[str, Any]:
    """Per engine mode and concurrency: for each variant `per_million_tokens`, and with `tokens_per_s` given `gpu_hours_a_month`; what
    custom saves against base and none, as a share and a month; and the break-even of the training against base."""
    return {
        mode: {
            concurrency: _row({variant: row[variant]["tokens_per_s"] for variant in VARIANTS}, cost)
            for concurrency, row in measured["speed"].items()
        }
        for mode, measured in served.items()
    }


def _row(speeds: Mapping[str, float], cost: CostConfig) -> dict[str, Any]:
    per_token = {
        variant: cost.gpus * cost.gpu_hour_price / 3600 / speed for variant, speed in speeds.items()
    }
    row: dict[str, Any] = {
        "per_million_tokens": {variant: 1e6 * price for variant, price in per_token.items()},
        "saved_share": {
            under: 1 - per_token["custom"] / per_token[under] for under in ("base", "none")
        },
    }
    if cost.tokens_per_s is not None:
        hours = {
            v: HOURS_A_MONTH * cost.gpus * cost.tokens_per_s / speed for v, speed in speeds.items()
        }
        row["gpu_hours_a_month"] = hours
        row["saved_gpu_hours_a_month"] = {
            under: hours[under] - hours["custom"] for under in ("base", "none")
        }
    if cost.training_gpu_hours is not None:
        saved = per_token["base"] - per_token["custom"]
        spent = cost.training_gpu_hours * cost.gpu_hour_price
        row["break_even_tokens"] = spent / saved if saved > 0 else None
        if cost.tokens_per_s is not None:
            row["break_even_days"] = (
                spent / saved / cost.tokens_per_s / 86400 if saved > 0 else None
            )
    return row
