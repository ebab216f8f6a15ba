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

from outrider.eval.results.acceptance import Replay, Slice
from outrider.eval.results.parts import DRAFTERS, VARIANTS, ClusteredEstimate, Drafters
from outrider.eval.results.report import Results
from outrider.eval.results.speed import RateRow, SpeedRow

ORDER = list(VARIANTS)
COMPARED = (*DRAFTERS, "lookup", "ceiling")
"""Lines of the chart of acceptance length: both speculators, and both references."""
INK, LINE, CUSTOM = "var(--soft)", "var(--line)", "var(--custom)"
FONT = "system-ui, sans-serif"

Rows = Sequence[Mapping[str, Any]]


class Figure(NamedTuple):
    """A chart with its caption, the names of its colours, and what it shows."""

    caption: str
    names: Sequence[str]
    svg: str
    note: str


def acceptance_figure(results: Results) -> Figure:
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


def length_figure(replay: Replay, k: Drafters[int]) -> Figure:
    """Acceptance length by the number of drafts."""
    rows = [
        {"k": drafts, "variant": drafter, "value": length}
        for drafter in COMPARED
        for drafts, length in enumerate(replay.by_k[drafter], start=1)
    ]
    numbers = list(range(1, len(replay.by_k["base"]) + 1))
    x = alt.X("k:Q", title="drafted tokens k", axis=alt.Axis(values=numbers, format="d"))
    chosen = [{"k": each} for each in sorted({k.base, k.custom})]
    rules = _chart(chosen).mark_rule(color=INK, strokeDash=[3, 3]).encode(x=x)
    chart = rules + _lines(rows, COMPARED).encode(x=x)
    n = replay.ratio.observations
    note = f"Tokens per step, exact replay of {n:,} held-out responses. Dashed: each chosen K."
    return Figure("Acceptance length by k", COMPARED, _svg(chart), note)


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


def slice_figure(slices: Mapping[str, Sequence[Slice]]) -> Figure:
    """Acceptance length of custom / base in each slice; a rule marks 1."""
    rows = [
        {"slice": f"{dimension}: {each.name}", **_ends(each.ratio)}
        for dimension, rows in slices.items()
        for each in rows
    ]
    # Names are above their lines: a phone has no room next to them.
    base = _chart(rows).encode(y=alt.Y("slice:N", sort=None, axis=None))
    names = base.mark_text(align="left", dy=-13, fontSize=12, limit=330, color="var(--ink)")
    title, axis = "acceptance length, custom / base", alt.Axis(tickCount=6, grid=True)
    low = alt.X("low:Q", title=title, scale=alt.Scale(zero=False), axis=axis)
    spans = base.mark_rule(color=CUSTOM, strokeWidth=2).encode(x=low, x2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1, color=CUSTOM)
    even = _chart([{"value": 1}]).mark_rule(color=INK, strokeDash=[3, 3]).encode(x="value:Q")
    chart = (
        even
        + spans
        + points.encode(x=alt.X("value:Q", title=title))
        + names.encode(x=alt.value(5), text="slice:N")
    )
    note = "Exact replay at custom's K. Lines are 95 % intervals. Dashed: no gain."
    return Figure("Acceptance length by slice", [], _svg(chart, 36 * len(rows)), note)


def history_figure(runs: Mapping[str, Replay]) -> Figure:
    """Acceptance length of base and custom over the runs, with intervals."""
    rows = []
    for number, (run, replay) in enumerate(runs.items(), start=1):
        for drafter, length in (("base", replay.base), ("custom", replay.custom)):
            rows.append({"run": f"{number}. {run}", "variant": drafter, **_ends(length)})
    axis = alt.Axis(labelAngle=0, labelLimit=110, labelOverlap=True)
    scale = alt.Scale(type="point", padding=0.5)
    x = alt.X("run:N", title=None, sort=None, scale=scale, axis=axis)
    lines = _lines(rows, DRAFTERS).encode(x=x)
    spans = _chart(rows).mark_rule(strokeWidth=2)
    spans = spans.encode(x=x, y="low:Q", y2="high:Q", color=_colour(DRAFTERS))
    note = "Exact replay of each run's held-out responses. Lines are 95 % intervals."
    return Figure("Acceptance length over the runs", DRAFTERS, _svg(lines + spans), note)


def training_figure(metrics: Rows, published: str) -> Figure | None:
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
    chart = _lines(rows, ["custom"]).encode(x=x)
    note = (
        "Exact replay of the validation part, at the trained depth. Step 0 is the base speculator."
    )
    return Figure("Acceptance length during training", ["custom"], _svg(chart), note + published)


def _chart(rows: Rows) -> alt.Chart:
    return alt.Chart(alt.Data(values=list(rows)))


def _lines(rows: Rows, variants: Sequence[str]) -> alt.Chart:
    """Lines through `value` by variant; the caller encodes x."""
    chart = _chart(rows).mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
    return chart.encode(y=y, color=_colour(variants))


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


def _ends(estimate: ClusteredEstimate) -> dict[str, float]:
    """The value, and its interval if it has one."""
    low, high = estimate.low or estimate.value, estimate.high or estimate.value
    return {"value": estimate.value, "low": low, "high": high}


def _svg(chart: Any, height: int = 210) -> str:
    import vl_convert

    chart = (
        chart.properties(width=340, height=height)
        .configure(background="transparent", font=FONT, padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            domain=False,
            ticks=False,
            gridColor=LINE,
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
