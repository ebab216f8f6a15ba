"""The top of the report in words: its title, and the verdict in two sentences.

    verdict_sentences(report)[1]     # "At 1 request, custom writes 1.57 [1.51, 1.63] times ..."

The same words are in report.html, report.md and the terminal.
"""

from pathlib import Path
from typing import cast

from outrider.data.ingest.traffic_facts import date, pluralize
from outrider.eval.config import DO_NOT_SHIP, SHIP, UNDECIDED
from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Report
from outrider.eval.results.sections import SpeedRow
from outrider.speculators.kinds import kind_named, lookup_names

OPENING = {SHIP: "Ships", DO_NOT_SHIP: "Does not ship", UNDECIDED: "Undecided"}
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
    parts = [f"custom is {custom}", f"{pluralize(ratio.observations, 'held-out response')}"]
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
    """The verdict in one plain sentence, and the gain with its intervals in another."""
    return [f"{OPENING[report.verdict.verdict]}: {_reason(report)}", _gain(report)]


def serving_advice(report: Report) -> str:
    """What to serve instead of custom; or empty. It does not repeat the sentences' figures."""
    _, row = main_row(report)
    if report.better_lookup is None or row.lookup is None or row.lookup.custom_over.low > 1:
        return report.lookup_line
    return (
        f"Ship {report.lookup_in_words} instead: `outrider eval RECIPE --speculator"
        f" {report.better_lookup}` evaluates it."
    )


def concurrency_in_words(concurrency: int | str) -> str:
    """`1 request`, or `8 requests at a time`."""
    load = pluralize(int(concurrency), "request")
    return load if int(concurrency) == 1 else f"{load} at a time"


def invert_ratio(ratio: Estimate) -> Estimate:
    """The ratio the other way round; its interval is exact."""
    return Estimate(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _gain(report: Report) -> str:
    """Custom's tokens/s over base, no speculation and lookup at the main concurrency."""
    mode, row = main_row(report)
    load = concurrency_in_words(report.choice.main_concurrency)
    custom = "custom"
    if report.speculator.kind in lookup_names():
        custom = kind_named(report.speculator.kind).in_words
    engine = f", {mode}," if len(report.served) > 1 else ","
    gains = (
        f"At {load}{engine} {custom} writes {_times(row.custom_over_base)} as many tokens/s as"
        f" base, the speculator in use, and {_times(row.custom_over_none)} as many as without"
        " speculation"
    )
    return f"{gains}{_against_lookup(report, row)} (in brackets: 95 % intervals)."


def _against_lookup(report: Report, row: SpeedRow) -> str:
    """The clause on which of custom and the free lookup is faster; empty without a lookup."""
    if row.lookup is None:
        return ""
    ratio = row.lookup.custom_over
    lookup = report.lookup_in_words
    if ratio.low > 1:
        return f"; it writes {_times(ratio)} as many as {lookup}, which is free"
    free = f"{lookup}, which is free (no training, no weights),"
    if ratio.high < 1:
        return f"; but {free} wins: it writes {_times(invert_ratio(ratio))} as many as custom"
    return f"; {free} is not shown to be slower: custom writes {_times(ratio)} as many"


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times"


def _reason(report: Report) -> str:
    """Counts the checks, and names the first that keeps the verdict from being `ship`."""
    checks = report.verdict.checks
    number = {
        outcome: sum(check.outcome == outcome for check in checks)
        for outcome in ("failed", "undecided", "passed")
    }
    if report.verdict.verdict == SHIP:
        words = f"all {pluralize(len(checks), 'check')} passed"
        if report.not_measured:
            words += f"; not checked: {', '.join(report.not_measured)}"
        return f"{words}."
    counts = [f"{number['failed']} failed"] if number["failed"] else []
    counts += [f"{number['undecided']} undecided"] if number["undecided"] else []
    first = next(check for check in checks if check.outcome != "passed")
    if number["failed"]:
        first = next(check for check in checks if check.outcome == "failed")
    # Ratios of tokens/s are in the next sentence and in the chart.
    seen = "" if first.name.startswith("tokens/s") else f" ({first.seen})"
    checked = pluralize(len(checks), "check")
    return f"of {checked}, {' and '.join(counts)}; first: {first.name}{seen}."
