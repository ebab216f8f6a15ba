"""The report's charts as SVG.

    acceptance_chart(results)      # "<svg ...>"

Vega-Lite draws them when the report is written, so the page needs no script and no network. Colours
are CSS variables of the page: one drawing serves light, dark and print.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
from scipy.stats import norm

from outrider.eval.report.drift import Point
from outrider.eval.report.formatting import Interval
from outrider.eval.results.acceptance import Slice
from outrider.eval.results.kinds import Kinds
from outrider.eval.results.parts import DRAFTERS, VARIANTS, Drafters, SliceEstimate
from outrider.eval.results.report import Results
from outrider.eval.results.speed import RateRow, SpeedRow

ORDER = list(VARIANTS)
COLOURS = {variant: f"var(--{variant})" for variant in VARIANTS}
NO_SPECULATION = "no speculation"
INK, LINE = "var(--soft)", "var(--line)"
FONT = "system-ui, sans-serif"


def acceptance_chart(results: Results) -> str:
    """Share of steps whose drafts up to a position were all accepted.

    Bars are counted by the engine; ticks are from exact replay, where it is measured.
    """
    replayed = results.replay
    rows = []
    for drafter in DRAFTERS:
        engine = results.counted.of(drafter).cumulative
        replay = replayed.cumulative.of(drafter) if replayed else []
        for position, (counted, exact) in enumerate(itertools.zip_longest(engine, replay), start=1):
            rows.append(
                {"position": str(position), "variant": drafter, "engine": counted, "replay": exact}
            )
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("position:N", title="draft position", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=ORDER),
    )
    scale = alt.Scale(domain=[0, 1])
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=alt.Y("engine:Q", title=None, scale=scale, axis=_percent()),
        color=_colour(list(DRAFTERS)),
    )
    ticks = base.mark_tick(color="var(--ink)", thickness=2, width=14).encode(
        y=alt.Y("replay:Q", scale=scale)
    )
    return _svg((bars + ticks if replayed else bars).properties(width=340, height=210))


def speed_chart(speed: Mapping[str, SpeedRow]) -> str:
    """Tokens/s by concurrency, all requests together."""
    rows = [
        {
            "concurrency": concurrency,
            "variant": variant,
            "speed": row.of(variant).tokens_per_s,
        }
        for concurrency, row in speed.items()
        for variant in VARIANTS
    ]
    chart = (
        alt.Chart(_data(rows))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X(
                "concurrency:N",
                title="concurrent requests",
                sort=list(speed),
                axis=alt.Axis(labelAngle=0),
            ),
            xOffset=alt.XOffset("variant:N", sort=ORDER),
            y=alt.Y("speed:Q", title=None, axis=alt.Axis(tickCount=5)),
            color=_colour(ORDER),
        )
    )
    return _svg(chart.properties(width=340, height=210))


def rate_chart(rates: Mapping[str, RateRow]) -> str:
    """Tokens/s of a request by requests per second; hollow where the rate overran the server."""
    rows = []
    for rate, row in rates.items():
        for variant in VARIANTS:
            block = row.of(variant)
            speed, saturated = block.request_tokens_per_s, block.saturated
            rows.append({"rate": rate, "variant": variant, "speed": speed, "saturated": saturated})
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "rate:N", title="requests per second", sort=list(rates), axis=alt.Axis(labelAngle=0)
        ),
        y=alt.Y("speed:Q", title=None, axis=alt.Axis(tickCount=5)),
        color=_colour(ORDER),
    )
    own_colour: Any = _colour(ORDER).to_dict()
    points = base.mark_point(size=50, strokeWidth=2).encode(
        fill=alt.condition("datum.saturated", alt.value("var(--card)"), own_colour)
    )
    return _svg((base.mark_line(strokeWidth=2.5) + points).properties(width=340, height=210))


def burst_chart(rates: Mapping[str, RateRow]) -> str:
    """Tokens per delivery by requests per second.

    Points are over all tokens, rules from the 10th to the 90th percentile of the requests.
    """
    rows = []
    for rate, row in rates.items():
        for variant in VARIANTS:
            burst = row.of(variant).tokens_per_delivery
            rows.append({"rate": rate, "variant": variant, **burst.model_dump()})
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "rate:N", title="requests per second", sort=list(rates), axis=alt.Axis(labelAngle=0)
        ),
        xOffset=alt.XOffset("variant:N", sort=ORDER),
        color=_colour(ORDER),
    )
    rules = base.mark_rule(strokeWidth=2).encode(
        y=alt.Y("p10:Q", title=None, axis=alt.Axis(tickCount=5)), y2="p90:Q"
    )
    points = base.mark_point(filled=True, size=50).encode(y=alt.Y("value:Q"))
    return _svg((rules + points).properties(width=340, height=210))


def length_chart(by_k: Drafters[list[float]], k: Drafters[int]) -> str:
    """Acceptance length by the number of drafts, exact replay; rules mark each chosen k."""
    rows = []
    for drafter in DRAFTERS:
        for drafts, length in enumerate(by_k.of(drafter), start=1):
            rows.append({"k": drafts, "variant": drafter, "length": length})
    x = alt.X(
        "k:Q",
        title="drafted tokens k",
        axis=alt.Axis(values=list(range(1, len(by_k.base) + 1)), format="d"),
    )
    lines = (
        alt.Chart(_data(rows))
        .mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5)
        .encode(
            x=x,
            y=alt.Y("length:Q", title=None, scale=alt.Scale(zero=False)),
            color=_colour(list(DRAFTERS)),
        )
    )
    marks = [{"k": each} for each in sorted({k.base, k.custom})]
    chosen = alt.Chart(_data(marks)).mark_rule(color=INK, strokeDash=[3, 3]).encode(x=x)
    return _svg((chosen + lines).properties(width=340, height=210))


def kind_lines(kinds: Kinds, served: Mapping[str, SpeedRow]) -> list[dict[str, Any]]:
    """A row for each line and concurrency of `kind_chart`.

    `served` are the chosen kind's speeds in the engine mode of the forecast.
    """
    rows: list[dict[str, Any]] = []

    def add(name: str, concurrency: str, speed: Interval, served: bool) -> None:
        figures = {"speed": speed.value, "low": speed.low, "high": speed.high}
        rows.append({"kind": name, "concurrency": concurrency, "served": served, **figures})

    for concurrency, step_ms in kinds.choice.none_step_ms.items():
        speed = 1000 * int(concurrency) / step_ms
        add(NO_SPECULATION, concurrency, SliceEstimate(value=speed, low=None, high=None), False)
    for each in kinds.choice.kinds:
        for concurrency, forecast in each.tokens_per_s.items():
            add(each.kind, concurrency, forecast, False)
    for concurrency, row in served.items():
        for name, block in ((NO_SPECULATION, row.none), ("base", row.base)):
            add(
                name,
                concurrency,
                SliceEstimate(value=block.tokens_per_s, low=None, high=None),
                True,
            )
    for kind, found in kinds.served.items():
        for concurrency, measured in found.tokens_per_s[kinds.choice.mode].items():
            add(kind, concurrency, measured, True)
    return rows


def kind_chart(rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> str:
    """Tokens/s over concurrency by kind: forecasts as lines, served speeds as diamonds."""
    order = list(dict.fromkeys(row["concurrency"] for row in rows))
    domain = list(colours)
    colour = alt.Color(
        "kind:N",
        legend=None,
        scale=alt.Scale(domain=domain, range=[f"var(--{colours[name]})" for name in domain]),
    )
    x = alt.X("concurrency:N", title="concurrent requests", sort=order, axis=alt.Axis(labelAngle=0))
    base = alt.Chart(_data(rows)).encode(
        x=x, y=alt.Y("speed:Q", title=None, axis=alt.Axis(tickCount=5)), color=colour
    )
    offset = alt.XOffset("kind:N", sort=domain)
    spans = base.mark_rule(strokeWidth=2).encode(
        xOffset=offset, y=alt.Y("low:Q", title=None), y2="high:Q"
    )
    forecast = base.transform_filter("!datum.served")
    lines = forecast.mark_line(strokeWidth=2.5).encode(xOffset=offset)
    points = forecast.mark_point(filled=True, size=40, opacity=1).encode(xOffset=offset)
    served = base.transform_filter("datum.served")
    diamonds = served.mark_point(shape="diamond", size=90, strokeWidth=2).encode(xOffset=offset)
    return _svg((spans + lines + points + diamonds).properties(width=340, height=210))


def slice_chart(slices: Mapping[str, Sequence[Slice]]) -> str:
    """Acceptance length of custom / base in each slice, with its 95 % interval; a rule marks 1."""
    rows = []
    for dimension, its_slices in slices.items():
        for one in its_slices:
            ratio = one.ratio
            low, high = ratio.low or ratio.value, ratio.high or ratio.value
            name = f"{dimension}: {one.name}"
            rows.append({"slice": name, "ratio": ratio.value, "low": low, "high": high})
    # Names are above their lines: on a phone there is no room next to them.
    y = alt.Y("slice:N", sort=None, axis=None)
    base = alt.Chart(_data(rows)).encode(y=y)
    title = "acceptance length, custom / base"
    names = base.mark_text(align="left", dy=-13, fontSize=12, limit=330, color="var(--ink)").encode(
        x=alt.value(5), text="slice:N"
    )
    spans = base.mark_rule(color=COLOURS["custom"], strokeWidth=2).encode(
        x=alt.X(
            "low:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6, grid=True)
        ),
        x2="high:Q",
    )
    points = base.mark_point(filled=True, size=60, opacity=1, color=COLOURS["custom"]).encode(
        x=alt.X("ratio:Q", title=title)
    )
    even = (
        alt.Chart(_data([{"ratio": 1}])).mark_rule(color=INK, strokeDash=[3, 3]).encode(x="ratio:Q")
    )
    return _svg((even + spans + points + names).properties(width=340, height=36 * len(rows)))


def history_chart(points: Sequence[Point]) -> str:
    """Acceptance length of base and custom over the runs, with intervals."""
    rows = []
    for number, point in enumerate(points, start=1):
        for drafter, length in (("base", point.base), ("custom", point.acceptance_length)):
            low, high = length.low or length.value, length.high or length.value
            figures = {"value": length.value, "low": low, "high": high}
            rows.append({"run": f"{number}. {point.run}", "variant": drafter, **figures})
    axis = alt.Axis(labelAngle=0, labelLimit=110, labelOverlap=True)
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "run:N", title=None, sort=None, scale=alt.Scale(type="point", padding=0.5), axis=axis
        ),
        color=_colour(list(DRAFTERS)),
    )
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5).encode(y=y)
    spans = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    return _svg((spans + lines).properties(width=340, height=210))


def training_chart(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Acceptance length on the validation part during training, at the trained depth.

    None with fewer than two evaluations.
    """
    rows = [
        {"step": line["step"], "length": line["validation_acceptance_length"][-1]}
        for line in metrics
        if "validation_acceptance_length" in line
    ]
    if len(rows) < 2:
        return None
    chart = (
        alt.Chart(_data(rows))
        .mark_line(
            point=alt.OverlayMarkDef(size=35, color=COLOURS["custom"]),
            strokeWidth=2.5,
            color=COLOURS["custom"],
        )
        .encode(
            x=alt.X("step:Q", title="training step", axis=alt.Axis(tickCount=6)),
            y=alt.Y("length:Q", title=None, scale=alt.Scale(zero=False)),
        )
    )
    return _svg(chart.properties(width=340, height=210))


def z_chart(on_policy: Mapping[str, Any]) -> str:
    """Distribution of the sequences' z: bars as counted, ticks of a standard normal."""
    counts = on_policy["all"]["z"]["histogram"]
    edges = [-math.inf, *on_policy["z_edges"], math.inf]
    total = max(sum(counts), 1)
    rows = [
        {
            "from": f"{low:g}" if math.isfinite(low) else "less",
            "share": count / total,
            "normal": float(norm.cdf(high) - norm.cdf(low)),
        }
        for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True)
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "from:N",
            title="standard errors from the expected value",
            sort=None,
            axis=alt.Axis(labelAngle=0),
        )
    )
    bars = base.mark_bar(cornerRadiusEnd=2, color=COLOURS["base"]).encode(
        y=alt.Y("share:Q", title=None, axis=_percent())
    )
    ticks = base.mark_tick(color="var(--ink)", thickness=2, width=14).encode(y=alt.Y("normal:Q"))
    return _svg((bars + ticks).properties(width=340, height=150))


def histogram_chart(bins: Sequence[Sequence[int]]) -> str:
    """Sequences by number of tokens; bins of [least, most, count], labeled by the least."""
    rows = [{"least": f"{least:,}", "count": count} for least, _, count in bins]
    chart = (
        alt.Chart(_data(rows))
        .mark_bar(cornerRadiusEnd=2, color=COLOURS["base"])
        .encode(
            x=alt.X(
                "least:N",
                title="tokens, from",
                sort=None,
                axis=alt.Axis(labelAngle=0, labelOverlap=True),
            ),
            y=alt.Y("count:Q", title=None, axis=alt.Axis(tickCount=4)),
        )
    )
    return _svg(chart.properties(width=340, height=150))


def _data(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    return alt.Data(values=list(rows))


def _colour(variants: Sequence[str]) -> alt.Color:
    return alt.Color(
        "variant:N",
        legend=None,
        sort=ORDER,
        scale=alt.Scale(domain=list(variants), range=[f"var(--{each})" for each in variants]),
    )


def _percent() -> alt.Axis:
    return alt.Axis(format="%", tickCount=5)


def _svg(chart: Any) -> str:
    import vl_convert

    chart = (
        chart.configure(background="transparent", font=FONT, padding=4)
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
