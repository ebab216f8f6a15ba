"""The README's chart, from benchmarks/results/headline.json.

python -m tools.headline_chart      # writes docs/images/headline.svg; a test compares it

Bars are tokens/s. Lines are the 95 % intervals of the ratio to the fastest variant, times its
tokens/s. The picture has a white background, so that it can be read on dark pages too.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
HEADLINE = ROOT / "benchmarks" / "results" / "headline.json"
CHART = ROOT / "docs" / "images" / "headline.svg"

WIDTH = 760
LEFT = 190
"""Where the bars begin; their names are left of it."""
LONGEST = 340
"""Length of the longest bar."""
FIRST_ROW = 50
ROW = 38
BAR = 20
NOTE_LINE = 18
COLOURS = {"free": "#c2571a", "trained": "#2f6fde", "": "#8a8f98"}

STYLE = (
    "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:14px;fill:#1c1e21}"
    ".title{font-size:16px;font-weight:600}.note{font-size:12px;fill:#5f6670}"
    ".name{text-anchor:end}.interval{stroke:#1c1e21;stroke-width:1.5}"
)


def ratio_and_interval(text: str) -> list[float]:
    """The three numbers of `0.87 [0.77, 0.98]`; a plain 1 for the variant compared with."""
    return [float(part) for part in text.replace("[", "").replace("]", "").replace(",", "").split()]


def bar(top: int, row: dict[str, Any], fastest: float) -> list[str]:
    """The elements of one variant."""
    scale = LONGEST / fastest
    length = row["tokens_per_s"] * scale
    middle = top + BAR / 2
    elements = [
        f'<text class="name" x="{LEFT - 12}" y="{top + 15}">{escape(row["name"])}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="3"'
        f' fill="{COLOURS[row["colour"]]}"/>',
    ]
    label = f"{row['tokens_per_s']} tokens/s"
    end = length
    if row["ratio"]:
        _, low, high = ratio_and_interval(row["ratio"])
        start, end = LEFT + low * LONGEST, high * LONGEST
        elements.append(
            f'<path class="interval" d="M{start:.1f} {middle}H{LEFT + end:.1f}'
            f'M{start:.1f} {middle - 4}v8M{LEFT + end:.1f} {middle - 4}v8"/>'
        )
        label += f", {row['ratio']}"
    elements.append(f'<text x="{LEFT + end + 10:.1f}" y="{top + 15}">{escape(label)}</text>')
    return elements


def svg(chart: dict[str, Any]) -> str:
    """The chart as text of an SVG file."""
    rows = chart["rows"]
    notes = chart["notes"]
    bottom = FIRST_ROW + ROW * len(rows)
    height = bottom + NOTE_LINE * len(notes) + 12
    fastest = max(row["tokens_per_s"] for row in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img">',
        f"<title>{escape(chart['title'])}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text class="title" x="20" y="30">{escape(chart["title"])}</text>',
    ]
    for number, row in enumerate(rows):
        lines += bar(FIRST_ROW + ROW * number, row, fastest)
    for number, note in enumerate(notes):
        height_of_note = bottom + 14 + NOTE_LINE * number
        lines.append(f'<text class="note" x="20" y="{height_of_note}">{escape(note)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Writes the chart."""
    headline = json.loads(HEADLINE.read_text(encoding="utf-8"))
    CHART.write_text(svg(headline["chart"]), encoding="utf-8")


if __name__ == "__main__":
    main()
