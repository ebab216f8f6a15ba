"""How every page spells figures, and the environment of its templates.

environment().get_template("report.html.j2").render(...)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


class Interval(Protocol):
    """A figure with an interval, perhaps of unknown ends."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float | None: ...

    @property
    def high(self) -> float | None: ...


def environment() -> "Environment":
    """Jinja2 with the templates of this package: everything is escaped, unknown names are
    errors."""
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
        "signed": signed,
    }
    return environment


def number(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """A share as percent with one decimal."""
    return f"{value:.1%}"


def signed(value: float) -> str:
    """A difference as percent with sign and two decimals."""
    return f"{value:+.2%}"


def count(value: int) -> str:
    """A large number with three digits and a unit."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


def interval(estimate: Interval) -> str:
    """An estimate with its interval, if it has one."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
