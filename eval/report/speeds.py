"""The chart and the tiles of the report's first screen.

    load_bars(report)[0].rows[1].over     # custom's tokens/s over base, with one request in flight

A variant's bar is its tokens/s as a multiple of custom's: ratios have intervals, are comparable
between loads, and hold for whole responses. The page draws the bars with CSS, so that they fit a
phone; Markdown and the terminal have the same ratios as a table.
"""

from typing import Any, NamedTuple, cast

from outrider.eval.report.first_screen import concurrency_in_words, invert_ratio, main_row
from outrider.eval.results.parts import LOOKUP, Estimate
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Block, SpeedRow

LONGEST = 2.5
"""Most that a bar may exceed custom's; a wide interval would make all other bars short."""


class SpeedBar(NamedTuple):
    """A variant at one load; lengths are percentages of the chart's width."""

    name: str
    colour: str
    """The variant whose colour it has"""
    over: Estimate | None
    """Custom's tokens/s over this variant's; None for custom itself"""
    length: float
    low: float
    high: float


class LoadBars(NamedTuple):
    """The variants measured at one concurrency in one engine mode."""

    label: str
    rows: list[SpeedBar]


class Tile(NamedTuple):
    """A figure of custom at the main concurrency, next to those of the other variants."""

    figure: str
    label: str
    compared: str


def load_bars(report: Report) -> list[LoadBars]:
    """Every measured load, that of the verdict first."""
    rows = [
        (load_label(report, mode, size), _ratios(report, row))
        for mode, served in report.served.items()
        for size, row in served.speed.items()
    ]
    ends = [
        end
        for _, ratios in rows
        for ratio in ratios.values()
        for end in (1 / ratio.value, 1 / ratio.low)
    ]
    scale = 100 / min(max(1.0, *ends), LONGEST)
    return [LoadBars(label, _bars(ratios, scale)) for label, ratios in rows]


def one_over_scale(charted: list[LoadBars]) -> float:
    """Where custom's bars end, in percent of the chart's width."""
    return charted[0].rows[-1].length


def load_label(report: Report, mode: str, concurrency: int | str) -> str:
    """A load in words; the engine mode is named where there are several."""
    words = concurrency_in_words(concurrency)
    return f"{words}, {mode}" if len(report.served) > 1 else words


def _ratios(report: Report, row: SpeedRow) -> dict[tuple[str, str], Estimate]:
    """(name, colour) of each variant but custom -> custom's tokens/s over its."""
    ratios = {("none", "none"): row.custom_over_none}
    if row.lookup is not None:
        ratios[report.lookup_in_words, LOOKUP] = row.lookup.custom_over
    if row.current is not None:
        name = f"base, K = {report.settings['current_k']}"
        ratios[name, "base"] = row.current.custom_over
    ratios["base", "base"] = row.custom_over_base
    return ratios


def _bars(ratios: dict[tuple[str, str], Estimate], scale: float) -> list[SpeedBar]:
    bars = []
    for (name, colour), ratio in ratios.items():
        relative = invert_ratio(ratio)
        bars.append(
            SpeedBar(
                name=name,
                colour=colour,
                over=ratio,
                length=min(scale * relative.value, 100.0),
                low=min(scale * relative.low, 100.0),
                high=min(scale * relative.high, 100.0),
            )
        )
    custom = SpeedBar(
        name="custom", colour="custom", over=None, length=scale, low=scale, high=scale
    )
    return [*bars, custom]


def tiles(report: Report) -> list[Tile]:
    """Tokens/s, time to first token and, with a price, what a million tokens cost."""
    mode, row = main_row(report)
    blocks = main_blocks(report, row)
    speeds = {name: f"{block.tokens_per_s:.0f}" for name, block in blocks.items()}
    waits = {name: f"{block.ttft_ms.p50:.0f}" for name, block in blocks.items()}
    shown = [
        _tile("tokens/s", "", speeds),
        _tile("to the first token, median", "ms", waits),
    ]
    if report.cost:
        by_name = prices(report, mode, str(report.choice.main_concurrency))
        rounded = {name: f"{price:.3g}" for name, price in by_name.items()}
        shown.append(_tile("per million tokens", currency(report), rounded))
    return shown


def prices(report: Report, mode: str, concurrency: str) -> dict[str, float]:
    """Price of a million output tokens by variant, in eval.cost's currency.

    report.json has those of `VARIANTS`. The price of a token is inverse to an endpoint's tokens/s,
    which gives those of the other variants.
    """
    assert report.cost is not None
    row = report.served[mode].speed[concurrency]
    cost = report.cost[mode][concurrency].per_million_tokens
    at_one_token_per_s = cost.none * row.none.tokens_per_s
    return {
        name: at_one_token_per_s / block.tokens_per_s
        for name, block in main_blocks(report, row).items()
    }


def main_blocks(report: Report, row: SpeedRow) -> dict[str, Block]:
    """The timed blocks of each served variant, by name."""
    blocks: dict[str, Block] = {"none": row.none}
    if row.lookup is not None:
        blocks[report.lookup_in_words] = row.lookup.block
    if row.current is not None:
        blocks[f"base, K = {report.settings['current_k']}"] = row.current.block
    return blocks | {"base": row.base, "custom": row.custom}


def currency(report: Report) -> str:
    """The currency of eval.cost; or empty."""
    cost = cast(dict[str, Any] | None, report.settings.get("cost"))  # the recipe's section
    return str((cost or {}).get("currency") or "")


def _tile(label: str, unit: str, figures: dict[str, str]) -> Tile:
    """Custom's figure, and those of all others in words."""
    compared = ", ".join(f"{name} {figures[name]}" for name in figures if name != "custom")
    return Tile(f"{figures['custom']} {unit}".strip(), label, compared)
