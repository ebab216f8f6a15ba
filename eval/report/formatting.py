"""What every page is made with: the templates, and how figures are spelled.

environment().get_template("report.html.j2").render(...)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Any:
    """Jinja2 over the templates here: everything escaped, an unknown name an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "interval": interval,
        "signed": lambda v: f"{v:+.2%}",
    }
    return environment


def number(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """A share, as per cent of one decimal."""
    return f"{value:.1%}"


def interval(estimate: Mapping[str, float]) -> str:
    """An estimate with its interval, where it has one."""
    if estimate["low"] is None:
        return f"{estimate['value']:.2f}"
    return f"{estimate['value']:.2f} [{estimate['low']:.2f}, {estimate['high']:.2f}]"
