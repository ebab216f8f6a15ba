"""The gate's checks of tokens/s against base, `eval.current_k`, lookup and none.

    speed_checks(findings, settings.gate)

At the main concurrency, custom must be shown to be faster than base at base's best K, base at
`eval.current_k`, and the fastest lookup, which needs no training. It must also be shown to be at
most 3 % slower than base at other concurrencies, and at most 3 % slower than no speculation at
every concurrency (non-inferiority: the interval must lie above `gate.least_speed`). `ship` requires
every check, so a lack of evidence does not pass. The levels need no correction: because all checks
must pass, the error probability is that of one check (intersection-union test: Berger,
Technometrics 24, 1982).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.data.ingest.traffic_facts import pluralize
from outrider.eval.config import GateConfig
from outrider.eval.results.parts import Estimate, interval
from outrider.eval.results.report import Check, Findings, Outcome
from outrider.eval.results.sections import SpeedRow
from outrider.eval.stats.intervals import correct_for_selection, units_needed
from outrider.eval.stats.speed_ratio import lengths_agree

MOST_REPEATS = 1000
"""Maximum number of repeats that a message suggests."""

LEAST_STARTS = 3
"""Minimum number of times that two engines must be started to compare their speeds: with two, an
interval of their ratio has one degree of freedom."""

SUPERIOR, ELSEWHERE, NONE = "superior", "elsewhere", "none"
"""Kinds of demand: faster than a reference at the main concurrency, non-inferior to base at
other concurrencies, non-inferior to no speculation at every concurrency."""


@dataclass(frozen=True)
class SpeedDemand:
    """A requirement that a ratio's interval lie above a threshold."""

    kind: str
    versus: str
    """`base`, `base at eval.current_k`, `lookup` or `none`"""
    concurrency: int
    ratio: Estimate
    threshold: float
    starts: int | None = None
    """Number of times the two engines were started; None if the variants share one engine"""

    @property
    def outcome(self) -> Outcome:
        """According to the interval, if nothing else leaves the demand undecided.

        It is undecided after fewer than LEAST_STARTS starts, and if model and server disagree.
        """
        ratio = self.ratio
        if self.starts is not None and self.starts < LEAST_STARTS:
            return "undecided"
        outcome = outcome_above(ratio.low, ratio.high, self.threshold)
        if not ratio.agrees:
            both_fail = ratio.measured is not None and ratio.measured.high <= self.threshold
            return "failed" if outcome == "failed" and both_fail else "undecided"
        return outcome

    @property
    def corrected(self) -> str:
        """Selection-corrected ratio as text; empty unless a SUPERIOR demand passed."""
        if self.kind != SUPERIOR or self.outcome != "passed":
            return ""
        value = correct_for_selection(self.ratio.value, self.ratio.low, self.threshold)
        return f", {value:.3f} corrected for selection"

    def what_decides(self, repeats: int) -> str:
        """Describes what would be decisive if the ratio stayed constant."""
        ratio = self.ratio
        if self.starts is not None and self.starts < LEAST_STARTS:
            return (
                f"two engines were started {pluralize(self.starts, 'time')}, but at least"
                f" {LEAST_STARTS} are needed: raise eval.starts and eval.repeats to {LEAST_STARTS}"
            )
        if not ratio.agrees:
            if not lengths_agree(ratio.lengths):
                assert ratio.lengths is not None
                return (
                    "model and server disagree: the ratio of tokens per step as served is"
                    f" {interval(ratio.lengths, 3)} of what exact replay of the logged responses to"
                    " the same prompts predicts (99 % interval)"
                )
            assert ratio.measured is not None and ratio.expected is not None
            return (
                f"model and server disagree: for the timed responses, exact replay predicts"
                f" {ratio.expected:.3f}, and {interval(ratio.measured, 3)} was served"
            )
        units = repeats if self.starts is None else self.starts
        needed = units_needed(
            value=ratio.value,
            low=ratio.low,
            high=ratio.high,
            threshold=self.threshold,
            units=units,
        )
        key = "eval.repeats" if self.starts is None else "eval.starts and as many eval.repeats"
        if needed > MOST_REPEATS:
            return f"more than {MOST_REPEATS:,} {key} would be needed"
        return f"about {needed} {key} would decide it ({units} were measured)"

    def __str__(self) -> str:
        return f"custom / {self.versus} at {self.concurrency}: {interval(self.ratio, 3)}"


def speed_demands(speed: Mapping[str, SpeedRow], main: int, gate: GateConfig) -> list[SpeedDemand]:
    """Lists the demands on one engine mode, the main concurrency first."""
    all_demands = []
    # The main concurrency first, because messages name the first check that failed.
    for size, row in sorted(speed.items(), key=lambda row: int(row[0]) != main):
        concurrency = int(size)
        base = [("base", row.custom_over_base)]
        if row.current:
            base.append(("base at eval.current_k", row.current.custom_over))
        kind = ELSEWHERE
        least = gate.least_speed
        if concurrency == main:
            kind = SUPERIOR
            least = gate.min_speed_ratio
        all_demands += [
            SpeedDemand(
                kind=kind,
                versus=versus,
                concurrency=concurrency,
                ratio=ratio,
                threshold=least,
                starts=row.starts,
            )
            for versus, ratio in base
        ]
        # Lookup is timed at the main concurrency only (bench/closed_loop.py).
        if row.lookup and concurrency == main:
            ratio = row.lookup.custom_over
            all_demands.append(
                SpeedDemand(
                    kind=SUPERIOR,
                    versus="lookup",
                    concurrency=concurrency,
                    ratio=ratio,
                    threshold=least,
                    starts=row.lookup_starts,
                )
            )
        all_demands.append(
            SpeedDemand(
                kind=NONE,
                versus="none",
                concurrency=concurrency,
                ratio=row.custom_over_none,
                threshold=gate.least_speed,
                starts=row.none_starts,
            )
        )
    return all_demands


def speed_checks(findings: Findings, gate: GateConfig) -> list[Check]:
    """Checks the speeds of every engine mode."""
    checks = []
    for mode, served in findings.served.items():
        asked = speed_demands(served.speed, findings.choice.main_concurrency, gate)
        for demand in asked:
            if demand.kind == SUPERIOR:
                where = f"{mode}, concurrency {demand.concurrency}"
                name = f"tokens/s, custom / {demand.versus}, {where}"
                checks.append(_check(name, [demand], served.repeats))
        elsewhere = [demand for demand in asked if demand.kind == ELSEWHERE]
        if elsewhere:
            name = f"tokens/s, custom / base, {mode}, other concurrencies"
            checks.append(_check(name, elsewhere, served.repeats))
        none = [demand for demand in asked if demand.kind == NONE]
        check = _check(f"tokens/s, custom / none, {mode}", none, served.repeats)
        if check.outcome == "failed" and not findings.by_batch_size:
            hint = " (export.k_per_batch_size: true drafts less or nothing there)"
            check = check.model_copy(update={"demand": check.demand + hint})
        checks.append(check)
    return checks


def _check(name: str, asked: Sequence[SpeedDemand], repeats: int) -> Check:
    """Checks demands that share a threshold."""
    outcomes = {one.outcome for one in asked}
    demand = f"the interval must lie above {asked[0].threshold:g}"
    undecided = [
        f"at {one.concurrency}, {one.what_decides(repeats)}"
        for one in asked
        if one.outcome == "undecided"
    ]
    if undecided:
        demand += f"; undecided: {'; '.join(undecided)}"
    outcome: Outcome = "undecided" if undecided else "passed"
    replayed = " for whole responses by replay"
    return Check(
        name=name,
        outcome="failed" if "failed" in outcomes else outcome,
        seen=", ".join(
            f"{interval(one.ratio, 3)}{replayed if one.ratio.estimator == 'replay' else ''}"
            f" at {one.concurrency}{one.corrected}"
            for one in asked
        ),
        demand=demand,
    )


def outcome_above(low: float, high: float, threshold: float) -> Outcome:
    """Outcome of the demand that the interval lie strictly above the threshold."""
    if low > threshold:
        return "passed"
    # Only an interval wholly below fails; one that contains the threshold decides nothing.
    return "failed" if high <= threshold else "undecided"
