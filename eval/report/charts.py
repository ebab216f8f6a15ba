"""The report's charts as SVG.

    acceptance_figure(results).svg      # "<svg ...>"

Vega-Lite draws them when the report is written, so the page needs no script or network. Colors
are CSS variables of the page, so one drawing works in light mode, dark mode and print.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outrider.common.inert import printable
from outrider.eval.results.parts import DRAFTERS, LOOKUP, VARIANTS
from outrider.eval.results.report import Report
from outrider.eval.results.sections import RateRow
from outrider.speculators.kinds import kind_named, lookup_names

INK = "var(--soft)"
FORM = {
    "width": 340,
    "height": 210,
    "config": {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "domain": False,
            "ticks": False,
            "gridColor": "var(--line)",
            "labelColor": INK,
            "labelFontSize": 12,
            "labelPadding": 6,
            "titleColor": INK,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
        },
        "axisX": {"grid": False},
    },
}
"""Size and look of every chart, in Vega-Lite's schema."""

OFFSET = {"field": "variant", "type": "nominal", "sort": VARIANTS}
"""Encoding that places the variants' bars side by side."""

VALUE = {"field": "value", "type": "quantitative", "title": None, "axis": {"tickCount": 5}}
BAR = {"type": "bar", "cornerRadiusEnd": 2}
LINE = {"type": "line", "strokeWidth": 2.5}

Rows = Sequence[Mapping[str, Any]]


class Chart(NamedTuple):
    """A chart with its caption, legend (variant names) and note."""

    caption: str
    names: Sequence[str]
    svg: str
    note: str
    colours: Mapping[str, str] = {}
    """Name in the legend -> the CSS variable of its colour, if that is another name"""


def acceptance_figure(results: Report) -> Chart:
    """Charts how often all drafts up to each position are accepted."""
    replayed = results.replay
    rows = []
    for drafter in DRAFTERS:
        engine = results.counted.of(drafter).cumulative
        replay = replayed.cumulative[drafter] if replayed else []
        for position, (counted, exact) in enumerate(itertools.zip_longest(engine, replay), start=1):
            rows.append(
                {"position": str(position), "variant": drafter, "engine": counted, "replay": exact}
            )
    share = VALUE | {"scale": {"domain": [0, 1]}, "axis": {"format": "%", "tickCount": 5}}
    bars = {"y": share | {"field": "engine"}, "color": _colour(DRAFTERS)}
    layers: list[dict[str, Any]] = [{"mark": BAR, "encoding": bars}]
    note = (
        "Share of steps in which all drafts up to this position were accepted, at each speculator's"
        " own K. Bars: counted by the engine."
    )
    if replayed:
        tick = {"type": "tick", "color": "var(--ink)", "thickness": 2, "width": 14}
        layers.append({"mark": tick, "encoding": {"y": share | {"field": "replay"}}})
        note += " Ticks: exact replay of the held-out traffic."
    x = _x("position", "draft position", "ascending")
    svg = _svg(rows, {"layer": layers, "encoding": {"x": x, "xOffset": OFFSET}})
    return Chart("Acceptance by draft position", DRAFTERS, svg, note)


def kinds_figure(results: Report) -> Chart:
    """Charts the tokens/s of all kinds that were compared on the validation part."""
    concurrency = results.choice.main_concurrency
    chosen = results.kinds[0].kind
    by_speed = sorted(results.kinds, key=lambda speed: speed.tokens_per_s(concurrency))
    rows = [
        {
            "kind": speed.kind,
            "value": speed.tokens_per_s(concurrency),
            "colour": "custom" if speed.kind == chosen else _role(speed.kind),
        }
        for speed in by_speed
    ]
    roles = ("none", "base", LOOKUP, "custom", "ceiling")
    scale = {"domain": roles, "range": [f"var(--{role})" for role in roles]}
    colour = {"field": "colour", "type": "nominal", "legend": None, "scale": scale}
    x = _x("kind", "", [speed.kind for speed in by_speed])
    svg = _svg(rows, {"mark": BAR, "encoding": {"x": x, "y": VALUE, "color": colour}})
    note = (
        f"Replayed acceptance of the validation part over measured step time, each kind at its own"
        f" K, with {concurrency} concurrent requests. {chosen} was chosen and is `custom` below."
    )
    return Chart("Tokens/s of everything that could be served", [], svg, note)


def _role(kind: str) -> str:
    """The colour of a kind that was not chosen: trained kinds have the ceiling's."""
    if kind in lookup_names():
        return LOOKUP
    return kind if kind in VARIANTS else "ceiling"


def lengths_figure(results: Report, depth: int) -> Chart | None:
    """Charts acceptance length by K with ceiling and lookups; None without exact replay."""
    if results.replay is None:
        return None
    colours = {"base": "base", "custom": "custom", "ceiling": "ceiling"}
    by_k = {name: results.replay.by_k[name] for name in colours}
    # Outrider has two lookups; further ones would share the second's colour.
    for number, lookup in enumerate(results.choice.lookups):
        if lookup not in results.replay.by_k:
            continue
        in_words = kind_named(lookup).in_words
        colours[in_words] = LOOKUP if number == 0 else "soft"
        by_k[in_words] = results.replay.by_k[lookup]
    rows = [
        {"k": str(k), "variant": name, "value": length}
        for name, lengths in by_k.items()
        for k, length in enumerate(lengths[:depth], start=1)
    ]
    names = list(by_k)
    scale = {"domain": names, "range": [f"var(--{colours[name]})" for name in names]}
    colour = {"field": "variant", "type": "nominal", "legend": None, "scale": scale}
    value = VALUE | {"scale": {"zero": False}}
    encoding = {
        "x": _x("k", "drafted tokens per step, K", [str(k) for k in range(1, 1 + depth)]),
        "y": value,
        "color": colour,
    }
    svg = _svg(rows, {"mark": LINE | {"point": {"size": 45}}, "encoding": encoding})
    note = "Exact replay of held-out responses."
    return Chart("Tokens per step by K", names, svg, note, colours=colours)


def rate_figure(title: str, rates: Mapping[str, RateRow]) -> Chart:
    """Charts tokens/s per request against the request rate."""
    rows = []
    for rate, row in rates.items():
        for variant in VARIANTS:
            block = row.of(variant)
            rows.append(
                {
                    "rate": rate,
                    "variant": variant,
                    "value": block.request_tokens_per_s,
                    "saturated": block.saturated,
                }
            )
    x = _x("rate", "requests per second", list(rates))
    colour = _colour(VARIANTS)
    hollow = {"condition": {"test": "datum.saturated", "value": "var(--card)"}, **colour}
    point = {"type": "point", "size": 50, "strokeWidth": 2}
    layers = [{"mark": LINE}, {"mark": point, "encoding": {"fill": hollow}}]
    svg = _svg(rows, {"layer": layers, "encoding": {"x": x, "y": VALUE, "color": colour}})
    note = "From sending a request to its last token. Hollow points: the server was saturated."
    return Chart(f"Tokens/s of a request: {title}", VARIANTS, svg, note)


def training_figure(metrics: Rows) -> Chart | None:
    """Charts acceptance length during training; None with fewer than two evaluations."""
    name = "validation_acceptance_length"
    rows = [
        {"step": line["step"], "variant": "custom", "value": line[name][-1]}
        for line in metrics
        if name in line
    ]
    if len(rows) < 2:
        return None
    encoding = {
        "x": {"field": "step", "type": "quantitative", "title": "training step"}
        | {"axis": {"tickCount": 6}},
        "y": VALUE | {"scale": {"zero": False}, "axis": {}},
        "color": _colour(["custom"]),
    }
    svg = _svg(rows, {"mark": LINE | {"point": {"size": 45}}, "encoding": encoding})
    note = (
        "Exact replay of the validation part, at the trained depth. Step 0 is the base speculator."
    )
    return Chart("Acceptance length during training", ["custom"], svg, note)


def _x(field: str, title: str, order: Sequence[str]) -> dict[str, Any]:
    axis = {"labelAngle": 0}
    return {"field": field, "type": "nominal", "title": title, "axis": axis, "sort": order}


def _colour(variants: Sequence[str]) -> dict[str, Any]:
    scale = {"domain": variants, "range": [f"var(--{variant})" for variant in variants]}
    return OFFSET | {"legend": None, "scale": scale}


def _svg(rows: Rows, chart: Mapping[str, Any]) -> str:
    import vl_convert

    drawn = _drawable({"data": {"values": rows}, **FORM, **chart})
    svg = vl_convert.vegalite_to_svg(drawn)
    # The page sets the size: keep the view box, drop the fixed width and height.
    return re.sub(r'(<svg[^>]*?) width="[\d.]+" height="[\d.]+"', r"\1", svg, count=1)


# What XML 1.0 has no form for, besides the control characters.
_NO_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def _drawable(value: Any) -> Any:
    """The value with texts that an SVG can hold: vl-convert ends the process at any other."""
    if isinstance(value, str):
        return _NO_XML.sub("\ufffd", printable(value))
    if isinstance(value, Mapping):
        return {key: _drawable(inner) for key, inner in value.items()}
    return [_drawable(inner) for inner in value] if isinstance(value, list | tuple) else value
