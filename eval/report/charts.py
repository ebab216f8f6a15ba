"""The report's charts as SVG: drawn by Vega-Lite when the report is written, so the page needs no script and no network.

Colours are CSS variables of the page, so that the same drawing serves light, dark and paper.

    acceptance_chart(results)      # "<svg ...>"
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

VARIANTS = ["none", "base", "custom"]
COLOURS = {variant: f"var(--{variant})" for variant in VARIANTS}
INK, LINE = "var(--soft)", "var(--line)"
FONT = "system-ui, sans-serif"


def acceptance_chart(results: Mapping[str, Any]) -> str:
    """Share of steps whose drafts up to a position were all accepted: bars counted by the engine, ticks from exact replay where there is one."""
    replayed = results["replay"]["cumulative"] if results["replay"] else {}
    rows = [
        {"position": str(position), "variant": variant, "engine": engine, "replay": replay}
        for variant in ("base", "custom")
        for position, (engine, replay) in enumerate(
            itertools.zip_longest(
                results["counted"][variant]["cumulative"], replayed.get(variant, [])
            ),
            start=1,
        )
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("position:N", title="draft position", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=VARIANTS),
    )
    scale = alt.Scale(domain=[0, 1])
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=alt.Y("engine:Q", title=None, scale=scale, axis=_percent()),
        color=_colour(["base", "custom"]),
    )
    ticks = base.mark_tick(color="var(--ink)", thickness=2, width=14).encode(
        y=alt.Y("replay:Q", scale=scale)
    )
    return _svg((bars + ticks if replayed else bars).properties(width=340, height=210))


def speed_chart(speed: Mapping[str, Any]) -> str:
    """Tokens a second by concurrency, all requests together."""
    rows = [
        {"concurrency": concurrency, "variant": variant, "speed": row[variant]["tokens_per_s"]}
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
            xOffset=alt.XOffset("variant:N", sort=VARIANTS),
            y=alt.Y("speed:Q", title=None, axis=alt.Axis(tickCount=5)),
            color=_colour(VARIANTS),
        )
    )
    return _svg(chart.properties(width=340, height=210))


def rate_chart(rates: Mapping[str, Any]) -> str:
    """A request's own tokens a second by requests sent a second; hollow where the rate overran the server."""
    rows = [
        {
            "rate": rate,
            "variant": v,
            "speed": row[v]["request_tokens_per_s"],
            "saturated": row[v]["saturated"],
        }
        for rate, row in rates.items()
        for v in VARIANTS
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("rate:N", title="requests a second", sort=list(rates), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("speed:Q", title=None, axis=alt.Axis(tickCount=5)),
        color=_colour(VARIANTS),
    )
    points = base.mark_point(size=50, strokeWidth=2).encode(
        fill=alt.condition("datum.saturated", alt.value("var(--card)"), _colour(VARIANTS).to_dict())
    )
    return _svg((base.mark_line(strokeWidth=2.5) + points).properties(width=340, height=210))


def burst_chart(rates: Mapping[str, Any]) -> str:
    """Tokens that one delivery brings, by requests sent a second: points over all tokens, rules from the 10th to the 90th percentile of
    the requests."""
    rows = [
        {"rate": rate, "variant": variant, **row[variant]["tokens_per_delivery"]}
        for rate, row in rates.items()
        for variant in VARIANTS
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("rate:N", title="requests a second", sort=list(rates), axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=VARIANTS),
        color=_colour(VARIANTS),
    )
    rules = base.mark_rule(strokeWidth=2).encode(
        y=alt.Y("p10:Q", title=None, axis=alt.Axis(tickCount=5)), y2="p90:Q"
    )
    points = base.mark_point(filled=True, size=50).encode(y=alt.Y("value:Q"))
    return _svg((rules + points).properties(width=340, height=210))


def length_chart(results: Mapping[str, Any]) -> str:
    """Acceptance length by the number of drafts, exact replay; the chosen k is marked."""
    rows = [
        {"k": k, "variant": variant, "length": length}
        for variant in ("base", "custom")
        for k, length in enumerate(results["replay"]["by_k"][variant], start=1)
    ]
    x = alt.X(
        "k:Q",
        title="drafted tokens k",
        axis=alt.Axis(values=sorted({row["k"] for row in rows}), format="d"),
    )
    lines = (
        alt.Chart(_data(rows))
        .mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5)
        .encode(
            x=x,
            y=alt.Y("length:Q", title=None, scale=alt.Scale(zero=False)),
            color=_colour(["base", "custom"]),
        )
    )
    chosen = (
        alt.Chart(_data([{"k": results["k"]}])).mark_rule(color=INK, strokeDash=[3, 3]).encode(x=x)
    )
    return _svg((chosen + lines).properties(width=340, height=210))


def slice_chart(slices: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Acceptance length of custom / base in each slice: a point with its 95 % interval; the line at 1 parts gain from loss."""
    rows = [
        {
            "slice": f"{dimension}: {row['name']}",
            "ratio": row["ratio"]["value"],
            "low": row["ratio"]["low"] or row["ratio"]["value"],
            "high": row["ratio"]["high"] or row["ratio"]["value"],
        }
        for dimension, rows in slices.items()
        for row in rows
    ]
    # Names stand above their lines and not beside them: on a phone there is no room for both.
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


def history_chart(points: Sequence[Mapping[str, Any]]) -> str:
    """Acceptance length of base and custom over the runs, with intervals."""
    rows = [
        {
            "run": f"{number}. {point['run']}",
            "variant": variant,
            **{part: point[name][part] for part in ("value", "low", "high")},
        }
        for number, point in enumerate(points, start=1)
        for variant, name in (("base", "base"), ("custom", "acceptance_length"))
    ]
    axis = alt.Axis(labelAngle=0, labelLimit=110, labelOverlap=True)
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "run:N", title=None, sort=None, scale=alt.Scale(type="point", padding=0.5), axis=axis
        ),
        color=_colour(["base", "custom"]),
    )
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2.5).encode(y=y)
    spans = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    return _svg((spans + lines).properties(width=340, height=210))


def training_chart(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Acceptance length on the validation part while training, at the trained depth; None without two evaluations."""
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
    """How the sequences' z are spread: bars as counted, ticks as a standard normal has it."""
    counts, edges = on_policy["all"]["z"]["histogram"], [-math.inf, *on_policy["z_edges"], math.inf]
    rows = [
        {
            "from": f"{low:g}" if math.isfinite(low) else "less",
            "share": count / max(sum(counts), 1),
            "normal": (math.erf(high / 2**0.5) - math.erf(low / 2**0.5)) / 2,
        }
        for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True)
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "from:N",
            title="standard errors from what is expected",
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
    """How many sequences have so many tokens; bins of [least, most, count], named by the least."""
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


def _data(rows: list[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=rows)


def _colour(variants: list[str]) -> alt.Color:
    return alt.Color(
        "variant:N",
        legend=None,
        sort=VARIANTS,
        scale=alt.Scale(domain=variants, range=[COLOURS[v] for v in variants]),
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
