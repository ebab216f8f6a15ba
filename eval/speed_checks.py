"""The gate's checks of tokens/s: against base, against what runs today, and against none.

    speed_checks(findings, settings.gate)

At the main concurrency custom must be shown to be faster than base at base's own best K, than base
at `eval.current_k`, and than n-gram lookup, which needs no training. Elsewhere, and against no
speculation everywhere, it must not be shown to be slower: what no interval decides is listed with
the number of repeats that would. Where the served schedule drafts nothing, an engine that
speculates cannot be as fast as one without: its drafter still reads every token. There it is enough
that few of the engine's steps had drafts.
"""

import math
from collections.abc import Mapping

from outrider.eval.config import GateConfig
from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Check, Findings, Outcome
from outrider.eval.results.speed import Served, SpeedRow
from outrider.eval.stats.intervals import units_needed

MOST_REPEATS = 1000
"""More are not named."""

MOST_DRAFTING = 0.5
"""Largest share of steps with drafts where the schedule drafts nothing; an engine that ignores the
schedule has them in all."""


def speed_checks(findings: Findings, gate: GateConfig) -> list[Check]:
    """The checks of every engine mode."""
    checks = []
    for mode, served in findings.served.items():
        main = str(findings.main_concurrency)
        checks += _at_main(findings, mode, served, main, gate.min_speed_ratio)
        others = {name: row for name, row in served.speed.items() if name != main}
        if others:
            checks.append(_elsewhere(mode, served, others))
        checks.append(_against_none(findings, mode, served))
    return checks


def _at_main(
    findings: Findings, mode: str, served: Served, main: str, threshold: float
) -> list[Check]:
    row = served.speed[main]
    measured = {"base": row.custom_over_base}
    if row.current:
        measured[f"base at eval.current_k = {findings.current_k}"] = row.current.custom_over
    if row.lookup:
        measured["n-gram lookup"] = row.lookup.custom_over
    checks = []
    for versus, ratio in measured.items():
        outcome = above(ratio.low, ratio.high, threshold)
        demand = f"the interval must lie above {threshold:g}"
        if outcome == "undecided":
            demand += f" (undecided: {_what_decides(ratio, threshold, served.repeats)})"
        check = Check(
            name=f"tokens/s, custom / {versus}, {mode}, concurrency {main}",
            outcome=outcome,
            seen=interval(ratio),
            demand=demand,
        )
        checks.append(check)
    return checks


def _elsewhere(mode: str, served: Served, rows: Mapping[str, SpeedRow]) -> Check:
    """Base at the other concurrencies; `better` is corrected for their number."""
    found: dict[str, tuple[Estimate, Outcome]] = {}
    for name, row in rows.items():
        ratio = row.custom_over_base
        slower = ratio.high < 1
        found[name] = (ratio, "failed" if slower else "passed" if row.better else "undecided")
        if row.current and row.current.custom_over.high < 1:
            found[f"{name} (eval.current_k)"] = (row.current.custom_over, "failed")
    return _list(
        f"tokens/s, custom / base, {mode}, other concurrencies",
        found,
        "no interval may lie below 1",
        served.repeats,
    )


def _against_none(findings: Findings, mode: str, served: Served) -> Check:
    found: dict[str, tuple[Estimate, Outcome]] = {}
    off = []
    for name, row in served.speed.items():
        outcome = _not_slower(row.custom_over_none)
        if outcome == "failed" and _drafts_nothing(findings, name, row):
            off.append(name)
            outcome = "passed"
        found[name] = (row.custom_over_none, outcome)
    demand = "no interval may lie below 1"
    if off:
        demand += f", except where the schedule drafts nothing, as counted at {', '.join(off)}"
    elif any(outcome == "failed" for _, outcome in found.values()) and not findings.by_batch_size:
        demand += " (export.k_per_batch_size: true drafts less or nothing there)"
    return _list(f"tokens/s, custom / none, {mode}", found, demand, served.repeats)


def _list(
    name: str, found: Mapping[str, tuple[Estimate, Outcome]], demand: str, repeats: int | None
) -> Check:
    """One check of several concurrencies, which shipping only needs not to fail."""
    outcomes = [outcome for _, outcome in found.values()]
    undecided = [
        f"at {place} {_what_decides(ratio, 1.0, repeats)}"
        for place, (ratio, outcome) in found.items()
        if outcome == "undecided"
    ]
    if undecided:
        demand += f"; undecided: {'; '.join(undecided)}"
    outcome: Outcome = "undecided" if undecided else "passed"
    return Check(
        name=name,
        outcome="failed" if "failed" in outcomes else outcome,
        needed=False,
        seen=", ".join(f"at {place} {interval(ratio)}" for place, (ratio, _) in found.items()),
        demand=demand,
    )


def above(low: float, high: float, threshold: float) -> Outcome:
    """Whether an interval lies above the threshold; one that ends at it lies below."""
    if low > threshold:
        return "passed"
    return "failed" if high <= threshold else "undecided"


def _not_slower(ratio: Estimate) -> Outcome:
    """Fails where it is shown to be slower: a ratio of exactly 1 is not."""
    if ratio.high < 1:
        return "failed"
    return "passed" if ratio.low >= 1 else "undecided"


def _what_decides(ratio: Estimate, threshold: float, repeats: int | None) -> str:
    """How many repeats would decide it, if the ratio stays what it is."""
    needed = math.inf
    if repeats is not None:
        needed = units_needed(ratio.value, ratio.low, ratio.high, threshold, repeats)
    if needed > MOST_REPEATS:
        return f"more than {MOST_REPEATS:,} eval.repeats would decide it"
    return f"about {needed} eval.repeats would decide it, {repeats} were measured"


def _drafts_nothing(findings: Findings, concurrency: str, row: SpeedRow) -> bool:
    """Whether the served schedule has 0 drafts there, and the engine followed it.

    At a block's end fewer requests run, for which the schedule may draft.
    """
    schedules = findings.choice.k_per_batch_size
    if not findings.by_batch_size or schedules is None:
        return False
    planned = scheduled(schedules.custom, int(concurrency))
    return planned == 0 and row.drafting.custom < MOST_DRAFTING


def scheduled(rows: list[tuple[int, int, int]], requests: int) -> int | None:
    """K for so many requests; beyond the last range, its K holds."""
    for _, last, k in rows:
        if requests <= last:
            return k
    return rows[-1][2] if rows else None


def interval(estimate: Estimate) -> str:
    """The estimate as the verdict shows it."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
