"""Cost of speed: price per million tokens, GPU-hours per month.

    money(served, CostConfig(gpu_hour_price=2.5, tokens_per_s=20000), gpus=8)

An endpoint that delivers s tokens/s on g GPUs costs g * price / 3600 / s per token. n tokens/s need
n / s such endpoints.
"""

from collections.abc import Mapping

from outrider.eval.config import CostConfig
from outrider.eval.results.parts import VARIANTS, Variants
from outrider.eval.results.speed import Cost, Served, SpeedRow

HOURS_A_MONTH = 730


def money(served: Mapping[str, Served], cost: CostConfig, gpus: int) -> dict[str, dict[str, Cost]]:
    """Cost by engine mode and concurrency; `gpus` of one endpoint."""
    table: dict[str, dict[str, Cost]] = {}
    for mode, measured in served.items():
        table[mode] = {
            concurrency: cost_of(row, cost, gpus) for concurrency, row in measured.speed.items()
        }
    return table


def cost_of(row: SpeedRow, cost: CostConfig, gpus: int) -> Cost:
    """Cost at the tokens/s of one concurrency."""
    speeds = {variant: row.of(variant).tokens_per_s for variant in VARIANTS}
    price_per_s = gpus * cost.gpu_hour_price / 3600
    per_token = {variant: price_per_s / speed for variant, speed in speeds.items()}
    hours = None
    if cost.tokens_per_s is not None:
        gpu_hours = HOURS_A_MONTH * gpus * cost.tokens_per_s
        hours = Variants[float](**{variant: gpu_hours / speed for variant, speed in speeds.items()})
    return Cost(
        per_million_tokens=Variants[float](
            **{variant: 1e6 * price for variant, price in per_token.items()}
        ),
        gpu_hours_a_month=hours,
    )
