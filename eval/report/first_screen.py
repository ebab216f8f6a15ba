"""The report's first screen: its title, and the verdict in sentences.

    verdict_sentences(report)[1]     # "At 1 request, custom writes 1.57 times as many tokens/s ..."

The same words are in report.html, report.md and the terminal.
"""

from pathlib import Path
from typing import cast

from outrider.data.ingest.traffic_facts import counted, date
from outrider.eval.config import DO_NOT_SHIP, SHIP, UNDECIDED
from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Report
from outrider.eval.results.sections import SpeedRow
from outrider.speculators.kinds import kind_named, lookup_names

OPENING = {SHIP: "Ships.", DO_NOT_SHIP: "Does not ship.", UNDECIDED: "Undecided."}
"""Verdict -> the first word or words of the report."""


def title(report: Report) -> str:
    """Names the model, the traffic and the date."""
    words = f"{Path(report.target).name} on {report.recipe}"
    measured = measured_on(report)
    return f"{words}, {measured}" if measured else words


def measured_on(report: Report) -> str:
    """The day on which the run started, else that of the last held-out request; or empty."""
    started = report.provenance.get("started")
    if started:
        return str(started)[:10]
    return date(report.heldout_until)[:10] if report.heldout_until else ""


def subtitle(report: Report) -> str:
    """What was evaluated, on how much traffic and in which engine."""
    custom = kind_named(report.speculator.kind).in_words
    ratio = report.acceptance_ratio
    parts = [f"custom is {custom}", f"{counted(ratio.observations, 'held-out response')}"]
    engine = cast(dict[str, str], report.provenance.get("engine") or {})
    if "measured with" in engine:
        parts.append(engine["measured with"])
    modes = " and ".join(report.served)
    parts.append(f"engine {modes}")
    return ", ".join(parts)


def main_row(report: Report) -> tuple[str, SpeedRow]:
    """The first engine mode, and its speeds at the main concurrency."""
    mode, served = next(iter(report.served.items()))
    return mode, served.speed[str(report.choice.main_concurrency)]


def verdict_sentences(report: Report) -> list[str]:
    """The verdict, and the gain with its interval, in plain sentences."""
    return [f"{OPENING[report.verdict.verdict]} {_reason(report)}", _gain(report)]


def lookup_verdict(report: Report) -> str:
    """Says which of custom and the free lookup is faster; empty if lookup was not served."""
    _, row = main_row(report)
    if row.lookup is None:
        return ""
    ratio = row.lookup.custom_over
    lookup = report.lookup_in_words
    if ratio.low > 1:
        return (
            f"Custom writes {ratio.value:.2f} times as many tokens/s as {lookup}, which is free"
            f" ({_range(ratio)})."
        )
    name = lookup.capitalize()
    if ratio.high < 1:
        inverse = inverted(ratio)
        return (
            f"{name}, which is free (no training, no weights), wins: it writes"
            f" {inverse.value:.2f} times as many tokens/s as custom ({_range(inverse)})."
        )
    return (
        f"{name}, which is free (no training, no weights), is not shown to be slower than custom:"
        f" custom has {ratio.value:.2f} times its tokens/s ({_range(ratio)})."
    )


def inverted(ratio: Estimate) -> Estimate:
    """The ratio the other way round; its interval is exact."""
    return Estimate(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _gain(report: Report) -> str:
    """Custom's tokens/s over base and over no speculation at the main concurrency."""
    mode, row = main_row(report)
    load = counted(report.choice.main_concurrency, "request")
    if report.choice.main_concurrency > 1:
        load += " at a time"
    custom = "custom"
    if report.speculator.kind in lookup_names():
        custom = kind_named(report.speculator.kind).in_words
    engine = f", {mode}," if len(report.served) > 1 else ","
    return (
        f"At {load}{engine} {custom} writes {row.custom_over_base.value:.2f} times as many tokens/s"
        f" as base, the speculator in use ({_range(row.custom_over_base)}), and"
        f" {row.custom_over_none.value:.2f} times as many as without speculation"
        f" ({_range(row.custom_over_none)})."
    )


def _range(ratio: Estimate) -> str:
    return f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"


def _reason(report: Report) -> str:
    """Counts the checks, and names the first that keeps the verdict from being `ship`."""
    checks = report.verdict.checks
    number = {
        outcome: sum(check.outcome == outcome for check in checks)
        for outcome in ("failed", "undecided", "passed")
    }
    if report.verdict.verdict == SHIP:
        words = f"All {counted(len(checks), 'check')} passed"
        if report.not_measured:
            words += f"; not checked: {', '.join(report.not_measured)}"
        return f"{words}."
    counts = [f"{number['failed']} failed"] if number["failed"] else []
    counts += [f"{number['undecided']} undecided"] if number["undecided"] else []
    first = next(check for check in checks if check.outcome != "passed")
    if number["failed"]:
        first = next(check for check in checks if check.outcome == "failed")
    return (
        f"Of {counted(len(checks), 'check')}, {' and '.join(counts)}; first: {first.name}"
        f" ({first.seen})."
    )
