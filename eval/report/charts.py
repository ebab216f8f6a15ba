"""The report's charts as SVG.

    speed_figure("eager", results.served["eager"].speed).svg      # "<svg ...>"

Vega-Lite draws them when the report is written, so the page needs no script and no network. Colours
are CSS variables of the page: one drawing serves light, dark and print.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from outrider.eval.results.parts import DRAFTERS, VARIANTS
from outrider.eval.results.report import Report
from outrider.eval.results.speed import RateRow, SpeedRow

ORDER = list(VARIANTS)
INK = "var(--soft)"

Rows = Sequence[Mapping[str, Any]]


class Figure(NamedTuple):
    """A chart with its caption, the names of its colours, and what it shows."""

    caption: str
    names: Sequence[str]
    svg: str
    note: str


def acceptance_figure(results: Report) -> Figure:
    """Share of steps whose drafts up to a position were all accepted."""
    replayed = results.replay
    rows = []
    for drafter in DRAFTERS:
        engine = results.counted.of(drafter).cumulative
        replay = replayed.cumulative[drafter] if replayed else []
        for position, (counted, exact) in enumerate(itertools.zip_longest(engine, replay), start=1):
            rows.append(
                {"position": str(position), "variant": drafter, "engine": counted, "replay": exact}
            )
    axis = alt.Axis(format="%", tickCount=5)
    scale = alt.Scale(domain=[0, 1])
    base = _chart(rows).encode(x=_x("position", "draft position"), xOffset=_offset())
    chart = base.mark_bar(cornerRadiusEnd=2).encode(
        y=alt.Y("engine:Q", title=None, scale=scale, axis=axis), color=_colour(DRAFTERS)
    )
    note = (
        "Share of steps in which the drafts up to this position were all accepted, each at its own"
        " K. Bars: counted by the engine."
    )
    if replayed:
        ticks = base.mark_tick(color="var(--ink)", thickness=2, width=14)
        chart += ticks.encode(y=alt.Y("replay:Q", scale=scale))
        note += " Ticks: exact replay of the held-out traffic."
    return Figure("Acceptance by draft position", DRAFTERS, _svg(chart), note)


def speed_figure(mode: str, speed: Mapping[str, SpeedRow]) -> Figure:
    """Tokens/s by concurrency, all requests together."""
    rows = [
        {"concurrency": size, "variant": variant, "value": row.of(variant).tokens_per_s}
        for size, row in speed.items()
        for variant in VARIANTS
    ]
    x = _x("concurrency", "concurrent requests", list(speed))
    chart = _chart(rows).mark_bar(cornerRadiusEnd=2)
    chart = chart.encode(x=x, xOffset=_offset(), y=_y(), color=_colour(VARIANTS))
    note = f"Output tokens of all requests over the time of the block, vLLM in {mode} mode."
    return Figure(f"Tokens/s, {mode}", VARIANTS, _svg(chart), note)


def rate_figure(title: str, rates: Mapping[str, RateRow]) -> Figure:
    """Tokens/s of a request by requests per second."""
    rows = []
    for rate, row in rates.items():
        for variant in VARIANTS:
            block = row.of(variant)
            figures = {"value": block.request_tokens_per_s, "saturated": block.saturated}
            rows.append({"rate": rate, "variant": variant, **figures})
    x = _x("rate", "requests per second", list(rates))
    own_colour: Any = _colour(VARIANTS).to_dict()
    fill = alt.condition("datum.saturated", alt.value("var(--card)"), own_colour)
    base = _chart(rows).encode(x=x, y=_y(), color=_colour(VARIANTS))
    chart = base.mark_line(strokeWidth=2.5)
    chart += base.mark_point(size=50, strokeWidth=2).encode(fill=fill)
    note = "From sending a request to its last token. Hollow: the rate overran the server."
    return Figure(f"Tokens/s of a request: {title}", VARIANTS, _svg(chart), note)


def training_figure(metrics: Rows) -> Figure | None:
    """Acceptance length during training; None with fewer than two evaluations."""
    name = "validation_acceptance_length"
    rows = [
        {"step": line["step"], "variant": "custom", "value": line[name][-1]}
        for line in metrics
        if name in line
    ]
    if len(rows) < 2:
        return None
    x = alt.X("step:Q", title="training step", axis=alt.Axis(tickCount=6))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
    line = _chart(rows).mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5)
    chart = line.encode(x=x, y=y, color=_colour(["custom"]))
    note = (
        "Exact replay of the validation part, at the trained depth. Step 0 is the base speculator."
    )
    return Figure("Acceptance length during training", ["custom"], _svg(chart), note)


def _chart(rows: Rows) -> alt.Chart:
    return alt.Chart(alt.Data(values=list(rows)))


def _x(field: str, title: str, order: Sequence[str] | None = None) -> alt.X:
    axis = alt.Axis(labelAngle=0)
    return alt.X(f"{field}:N", title=title, axis=axis, sort=list(order) if order else "ascending")


def _y() -> alt.Y:
    return alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=5))


def _offset() -> alt.XOffset:
    return alt.XOffset("variant:N", sort=ORDER)


def _colour(variants: Sequence[str]) -> alt.Color:
    colours = [f"var(--{each})" for each in variants]
    scale = alt.Scale(domain=list(variants), range=colours)
    return alt.Color("variant:N", legend=None, sort=ORDER, scale=scale)


def _svg(chart: Any) -> str:
    import vl_convert

    chart = (
        chart.properties(width=340, height=210)
        .configure(background="transparent", font="system-ui, sans-serif", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            domain=False,
            ticks=False,
            gridColor="var(--line)",
            labelColor=INK,
            labelFontSize=12,
            labelPadding=6,
            titleColor=INK,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_axisX(grid=False)
    )
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    # The page sets the size: keep the view box, drop the fixed width and height.
    return re.sub(r'(<svg[^>]*?) width="[\d.]+" height="[\d.]+"', r"\1", svg, count=1)
