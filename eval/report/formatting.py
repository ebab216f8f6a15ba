"""Renders a template as an HTML page or as Markdown.

    render_report("report.j2", "html", r=report, ...)

Templates call the macros of `form`, which is html.j2 or markdown.j2. In both, `form.head`,
`form.row` and `form.end` make a table.
"""

import re
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from outrider.common.inert import inert_markdown, printable
from outrider.eval.results.parts import interval

TEMPLATES = Path(__file__).parent / "templates"
WIDTH = 110
"""Minimum width of tables in the terminal, in characters; narrower terminals wrap their lines."""


def render_report(template: str, form: Literal["html", "markdown"], **values: Any) -> str:
    """Renders the template; HTML is escaped, and undefined names are errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=form == "html",
        # A misspelled figure must not be an empty cell.
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": "{:.3f}".format,
        "percent": "{:.1%}".format,
        "interval": interval,
        "count": count,
    }
    text = environment.get_template(template).render(layer=f"{form}.j2", **values)
    text = inert_markdown(text) if form == "markdown" else printable(text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def print_markdown(text: str, console: Console) -> None:
    """Prints Markdown to a terminal, with tables at least WIDTH wide."""
    from rich.markdown import Markdown

    width = console.width
    # Narrower, rich wraps the figures inside the cells.
    console.width = max(console.width, WIDTH)
    console.print(Markdown(text), crop=False)
    console.width = width


def count(value: int) -> str:
    """Formats a number: three significant digits and k, M or B from 1000."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


def bytes_text(count: float) -> str:
    """Formats a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        # 999.5 would be shown as 1e+03.
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Formats seconds, switching to minutes at 90 s and hours at 3 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"
