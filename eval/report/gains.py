"""Which of several runs gains most in tokens/s, with its interval, or that it cannot be told.

    gains({"march": report, "april": later}).sentence

The gain of a run is its custom's tokens/s over no speculation: base may be another speculator in
each run. It is a ratio within the run, so it can be compared with that of another run; tokens/s
cannot. Runs are treated as independent samples, as in `change`: runs on the same requests vary
together, which makes the interval too wide, not too narrow.
"""

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from outrider.eval.report.change import Change, change
from outrider.eval.report.first_screen import concurrency_in_words, main_row
from outrider.eval.report.speeds import LONGEST, LoadBars, SpeedBar
from outrider.eval.results.parts import Estimate, Interval, interval
from outrider.eval.results.report import Report
from outrider.eval.results.sections import SpeedRow
from outrider.eval.speed_checks import LEAST_STARTS

REFERENCES = ("no speculation", "base", "lookup")
"""What custom's tokens/s are divided by, in the order of the chart."""


class Gains(BaseModel):
    """The runs' ratios of tokens/s at one load, and which is the largest."""

    load: str | None
    """Requests in flight and engine mode; null if no load was measured in all runs"""
    most: str | None
    """The run that gains most; null if it cannot be told"""
    over_next: Change | None
    """Its gain over that of the run that comes closest; null if the gains are not compared"""
    sentence: str
    """The same in words"""
    ratios: dict[str, dict[str, Estimate]]
    """Reference -> run -> custom's tokens/s over the reference's; empty without a load"""


def gains(runs: Mapping[str, Report]) -> Gains:
    """Compares the gains of at least two runs, by name."""
    load = common_load(list(runs.values()))
    if load is None:
        sentence = _untold("no engine mode and concurrency was measured in all of them")
        return Gains(load=None, most=None, over_next=None, sentence=sentence, ratios={})
    mode, size = load
    rows = {name: run.served[mode].speed[size] for name, run in runs.items()}
    ratios = _ratios(rows)
    in_words = f"{concurrency_in_words(size)}, {mode}"
    over_none = ratios[REFERENCES[0]]
    best = max(over_none, key=lambda name: over_none[name].value)
    pairs = math.comb(len(runs), 2)
    changes = {
        name: change(over_none[name], over_none[best], pairs) for name in runs if name != best
    }
    # All others must be worse: the one that comes closest decides.
    rival = min(changes, key=lambda name: changes[name].low)
    why = _unfit(runs, rows)
    is_told = not why and all(one.beyond_chance for one in changes.values())
    measured = (
        f"custom writes {interval(over_none[best])} times as many tokens/s as no speculation in"
        f" {best}, and {interval(over_none[rival])} times in {rival}"
    )
    nearest = changes[rival]
    ratio = interval(Interval(value=nearest.value, low=nearest.low, high=nearest.high))
    if is_told:
        sentence = f"{best} gains most: at {in_words}, {measured}; the ratio of the two is {ratio}."
    elif why:
        sentence = f"{_untold(why)} At {in_words}, {measured}."
    else:
        reason = f"at {in_words}, {measured}; the interval of their ratio, {ratio}, includes 1"
        sentence = _untold(reason)
    return Gains(
        load=in_words,
        most=best if is_told else None,
        over_next=None if why else nearest,
        sentence=sentence,
        ratios=ratios,
    )


def common_load(reports: Sequence[Report]) -> tuple[str, str] | None:
    """The engine mode and concurrency at which all runs are compared: the first run's main one.

    Without it, the first load that every run has; None if there is none.
    """
    first = reports[0]
    mode, _ = main_row(first)
    loads = [(mode, str(first.choice.main_concurrency))]
    loads += [(name, size) for name, served in first.served.items() for size in served.speed]
    for name, size in loads:
        if all(name in run.served and size in run.served[name].speed for run in reports):
            return name, size
    return None


def charted(compared: Gains) -> list[LoadBars]:
    """The ratios as bars, one group for each reference; empty without a load."""
    estimates = [ratio for of_runs in compared.ratios.values() for ratio in of_runs.values()]
    if not estimates:
        return []
    # A wide interval would make all bars short.
    longest = LONGEST * max(ratio.value for ratio in estimates)
    scale = 100 / min(max(1.0, *(ratio.high for ratio in estimates)), longest)
    return [
        LoadBars(f"custom / {reference}", [_bar(*of_run, scale) for of_run in of_runs.items()])
        for reference, of_runs in compared.ratios.items()
    ]


def one_of(compared: Gains) -> float:
    """Where a ratio of 1 is in the chart, in percent of its width."""
    loads = charted(compared)
    if not loads:
        return 0.0
    bar = loads[0].rows[0]
    assert bar.over is not None
    return bar.length / bar.over.value


def _bar(run: str, ratio: Estimate, scale: float) -> SpeedBar:
    return SpeedBar(
        name=run,
        colour="custom",
        over=ratio,
        length=scale * ratio.value,
        low=scale * ratio.low,
        high=min(scale * ratio.high, 100.0),
    )


def _ratios(rows: Mapping[str, SpeedRow]) -> dict[str, dict[str, Estimate]]:
    """Reference -> run -> ratio; lookup only if a run served one at this load."""
    none, base, lookup = REFERENCES
    ratios = {
        none: {name: row.custom_over_none for name, row in rows.items()},
        base: {name: row.custom_over_base for name, row in rows.items()},
    }
    over_lookup = {name: row.lookup.custom_over for name, row in rows.items() if row.lookup}
    return ratios | ({lookup: over_lookup} if over_lookup else {})


def _unfit(runs: Mapping[str, Report], rows: Mapping[str, SpeedRow]) -> str:
    """Why the gains cannot be compared by their intervals; empty if they can."""
    targets = {run.target for run in runs.values()}
    if len(targets) > 1:
        return f"they have different targets, {' and '.join(sorted(targets))}"
    for name, row in rows.items():
        if row.none_starts is not None and row.none_starts < LEAST_STARTS:
            return f"the engines of {name} were started fewer than {LEAST_STARTS} times"
        if not row.custom_over_none.agrees:
            return f"replay and server disagree in {name}"
    return ""


def _untold(why: str) -> str:
    return f"Which run gains most cannot be told: {why}."
