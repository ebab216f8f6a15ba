"""What a check is, and what becomes of it.

Check("parity", "engine and trainer draft the same tokens", "module.of.it", limit_s=240)
"""

import dataclasses
from typing import Any, Literal

from outrider.common.errors import OutriderError

Figures = dict[str, Any]
"""Measured values by name; the name has the unit."""
Place = Literal["gpu", "cpu"]
Status = Literal["pass", "fail", "skipped"]


class CheckFailed(OutriderError):
    """A check found a difference; the message has the numbers."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One check in a module with `on_gpu` and `on_cpu`."""

    name: str
    in_words: str
    module: str
    limit_s: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a check at one place; `reason` says why it failed or was skipped."""

    name: str
    place: Place
    status: Status
    seconds: float = 0.0
    reason: str = ""
    figures: Figures = dataclasses.field(default_factory=dict)
