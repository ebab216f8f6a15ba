"""Reports of one speculator on newer and newer traffic.

runs = {"march": report(0, 2.0, 3.0), "april": report(30, 2.0, 2.4)}
"""

from typing import Any

from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.results.report import Report
from tests.eval.sample_results import sample_results

SPREAD = 0.02


def estimate(value: float, spread: float = SPREAD) -> ClusteredEstimate:
    """With an interval of 2 % to either side."""
    return ClusteredEstimate(
        value=value,
        low=value / (1 + spread),
        high=value * (1 + spread),
        observations=120,
        clusters=60,
        over="60 sessions",
    )


def report(day: float, base: float, custom: float, **other: Any) -> Report:
    """A report of one evaluation, whose held-out traffic ends on that day."""
    results = sample_results()
    assert results.replay
    lengths = {"base": base, "custom": custom, "ratio": custom / base}
    replay = results.replay.model_copy(
        update={name: estimate(value) for name, value in lengths.items()}
    )
    update = {"heldout_until": 1.76e9 + 86400 * day, "replay": replay} | other
    return results.model_copy(update=update)
