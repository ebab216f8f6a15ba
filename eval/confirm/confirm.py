"""Whether production is as the report predicts, from counters that every vLLM server has.

    confirmed = confirm(Report.read(path), MetricsWindow(scrapes))
    confirmed.answer           # "lower: acceptance length 1.98 instead of 2.38 ..., because K ..."
    confirmed.figures["acceptance length"].ratio

A figure is the ratio of what was seen to what was reported, on the log scale, with a 95 % interval
from independent parts:

    acceptance   reported   s^2, from the report's interval over sessions (or users)
                 seen       s^2 n / m for m requests, where the report has n responses: counters are
                            sums, so requests are assumed to vary as the held-out responses do. m
                            is at most the number of seen tokens over the log's tokens a response.
                            And Var(a) / (steps L^2), the accepted drafts' own randomness, from the
                            counts by position; replay computes their expectation instead.
    TPOT         reported   START_NOISE^2, and r^2 / n for n timed requests with r = log(p90 / p50)
                            / 1.28
                 seen       START_NOISE^2 / servers, and r^2 / m

figures.py turns ratio and error into a reading. The report's acceptance at the drafts that were
seen gives the share of K, its TPOT at the load that was seen the share of the load. What remains of
acceptance is the traffic's (or that of other sampling settings or weights); what remains of TPOT is
not in the counters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.eval.confirm.expectation import ExpectedFigures, Z, expected_figures, log_error
from outrider.eval.confirm.figures import (
    LENGTH,
    LENGTH_CHANGE,
    MARGIN,
    TPOT,
    TPOT_CHANGE,
    TTFT,
    WIDEST,
    WORSE,
    Cause,
    ConfirmedFigure,
    LogError,
    causes_beyond_noise,
    causes_of,
    figure_of,
    reading_of,
    sentence,
)
from outrider.eval.confirm.scrape import DRAFTS, MetricsWindow, Scrape
from outrider.eval.results.parts import Estimate, Part, Variant
from outrider.eval.results.report import Report
from outrider.speculators.kinds import KINDS

START_NOISE = 0.05
"""Standard deviation (log) of speed between starts of an engine; 3 to 10 % is typical."""

LEAST_REQUESTS = 20
"""Minimum number of finished requests; below it, sums say nothing of how requests vary."""


class Conditions(Part):
    """What acceptance and speed depend on."""

    servers: int | None = None
    """Number of servers; null for the report"""
    requests: int
    """Finished requests, or held-out responses"""
    k: float
    """Mean number of drafts in a step with drafts"""
    load: float | None
    """Requests in an engine step, or the report's main concurrency; null if unknown"""
    prefix_hits: float | None
    """Share of prompt tokens found in the prefix cache; null if unknown"""
    prompt_tokens: float | None
    """Mean length of prompts; null if unknown"""
    response_tokens: float | None
    """Mean length of responses; null if unknown"""


class Confirmation(Part):
    """The answer, with every figure and condition."""

    answer: str
    """The readings in words, with causes"""
    reading: Literal["as reported", "differs", "undecided"]
    """`differs` if any figure is lower or higher; else `undecided` if any is"""
    worse: bool
    """Whether acceptance is lower or TPOT higher than reported"""
    figures: dict[str, ConfirmedFigure]
    """Figure -> reported and seen"""
    conditions: dict[str, Conditions]
    """`report`, `seen` and, with scrapes from before the restart, `before`"""


def confirm(
    report: Report, seen: MetricsWindow, before: MetricsWindow | None = None
) -> Confirmation:
    """Compares a report with the counts of the servers that run its speculator."""
    _check(seen, "--metrics")
    if not seen.speculates or not seen.k:
        raise OutriderError(
            f"{_sources(seen)}: no drafts were counted, so the server runs without speculation;"
            " start it with the bundle's serve.sh, or with the --speculative-config in it"
        )
    comparison = _Comparison(report, expected_figures(report, "custom"), seen)
    figures = {LENGTH: comparison.length(), TPOT: comparison.tpot()}
    first_token = comparison.first_token()
    if first_token is not None:
        figures[TTFT] = first_token
    conditions = {"report": comparison.logged, "seen": comparison.conditions}
    if before is not None:
        _check(before, "--before")
        conditions["before"] = _conditions(before)
        figures |= _changes(report, comparison, before)
    readings = {figure.reading for figure in figures.values()}
    reading: Literal["as reported", "differs", "undecided"] = "as reported"
    if readings & {"lower", "higher"}:
        reading = "differs"
    elif "undecided" in readings:
        reading = "undecided"
    return Confirmation(
        answer="\n".join(sentence(name, figure) for name, figure in figures.items()),
        reading=reading,
        worse=any(
            figures[name].reading == worse for name, worse in WORSE.items() if name in figures
        ),
        figures=figures,
        conditions=conditions,
    )


class _Comparison:
    """The servers' counts compared with what the report has for custom."""

    def __init__(self, report: Report, custom: ExpectedFigures, seen: MetricsWindow) -> None:
        self.custom = custom
        self.seen = seen
        self.logged = _logged(report, custom)
        self.conditions = _conditions(seen)
        self.load = seen.load or float(custom.main)
        """The load at which TPOT is predicted; the main concurrency if it was not counted"""
        # A lookup drafts what it finds, up to K, so its K is the engine's setting.
        kind = KINDS.get(report.speculator.kind)
        has_weights = kind is None or kind.has_weights
        self.k = seen.k if has_weights else float(seen.most_drafts)
        """Drafts per step, as the report counts them"""
        self.length_error = _length_error(custom, seen, self.logged)
        self.tpot_error = _tpot_error(custom, seen)
        self.reported_k = custom.k_at(custom.main)

    @property
    def remaining_length(self) -> float:
        """Seen over reported acceptance length, at equal K."""
        most = self.custom.largest_k
        if self.k > most:
            return self.seen.length_at(most) / self.custom.length(most)
        return self.seen.acceptance_length / self.custom.length(self.k)

    def length(self) -> ConfirmedFigure:
        """Acceptance length, at K of each."""
        reported = self.custom.length(self.reported_k)
        seen = self.seen.acceptance_length
        remaining = self.remaining_length
        traffic = Cause(
            name="traffic",
            words=f"the traffic differs at equal K: {self._lengths()}",
            effect=remaining,
        )
        causes = [
            self._of_k(seen / reported / remaining),
            *causes_beyond_noise(self.length_error, traffic),
        ]
        return figure_of(
            name=LENGTH,
            reported=reported,
            at=f"K = {self.reported_k}",
            seen=seen,
            error=self.length_error,
            requests=self.seen.requests,
            causes=causes,
        )

    def tpot(self) -> ConfirmedFigure:
        """Time per output token, at K and load of each."""
        reported = self.custom.tpot_ms(self.custom.main)
        at_load = self.custom.tpot_ms(self.load) / reported
        of_k = self.custom.k_effect(self.load, self.k)
        remaining = self.remaining_length
        acceptance = Cause(
            name="acceptance",
            words=f"acceptance at equal K is {remaining:.2f} of the report's",
            effect=1 / remaining,
        )
        uncounted = Cause(
            name="not in the counters",
            words="the machine, its flags, longer contexts or prefills between the steps differ:"
            f" {self._lengths()}",
            effect=self.seen.tpot_ms / (reported * at_load * of_k / remaining),
        )
        causes = [
            self._of_k(of_k),
            self._of_load(at_load),
            *causes_beyond_noise(self.length_error, acceptance),
            *causes_beyond_noise(self.tpot_error, uncounted),
        ]
        return figure_of(
            name=TPOT,
            reported=reported,
            at=f"{self.custom.main} at once",
            seen=self.seen.tpot_ms,
            error=self.tpot_error,
            requests=self.seen.requests,
            causes=causes,
        )

    def first_token(self) -> ConfirmedFigure | None:
        """Median time to first token; None if its bucket has no two ends."""
        # Ranks of the 95 % interval of a median: n / 2 -+ 1.96 sqrt(n) / 2 (order statistics).
        half = Z / (2 * math.sqrt(self.seen.requests))
        low = self.seen.first_token_ms(0.5 - half)
        middle = self.seen.first_token_ms(0.5)
        high = self.seen.first_token_ms(0.5 + half)
        if low is None or middle is None or high is None or not low[0]:
            return None
        reported = self.custom.first_token_ms(self.custom.main)
        seen = math.sqrt(middle[0] * middle[1])
        ratio = Estimate(value=seen / reported, low=low[0] / reported, high=high[1] / reported)
        reading = reading_of(ratio, WIDEST[TTFT])
        causes = [self._of_load(self.custom.first_token_ms(self.load) / reported)]
        prompt_ratio = _ratio(self.conditions.prompt_tokens, self.logged.prompt_tokens)
        if prompt_ratio is not None and (prompt_ratio > 1) == (ratio.value > 1):
            causes.append(Cause(name="traffic", words=self._lengths(), effect=None))
        hits = self.seen.prefix_hits
        # The report empties the cache before every block, so hits can only make it faster.
        if hits is not None and hits > MARGIN and ratio.value < 1:
            words = f"prefix hits are {hits:.0%}, and the report begins with an empty cache"
            causes.append(Cause(name="prefix hits", words=words, effect=None))
        return ConfirmedFigure(
            reported=reported,
            at=f"{self.custom.main} at once",
            seen=seen,
            ratio=ratio,
            reading=reading,
            because=causes_of(causes, ratio, reading),
        )

    def _of_k(self, effect: float) -> Cause:
        words = f"K is {self.k:.3g} instead of {self.reported_k}"
        return Cause(name="K", words=words, effect=effect)

    def _of_load(self, effect: float) -> Cause:
        words = f"{self.load:.3g} requests share a step instead of {self.custom.main}"
        largest = max(self.custom.blocks)
        if self.load > largest:
            words += f" (measured up to {largest})"
        return Cause(name="load", words=words, effect=effect)

    def _lengths(self) -> str:
        return _lengths(self.conditions, self.logged)


def _changes(
    report: Report, after: _Comparison, before: MetricsWindow
) -> dict[str, ConfirmedFigure]:
    """After over before the restart, each at its own K and load, against the report's ratio."""
    variant: Variant = "base" if before.speculates and before.k else "none"
    old = expected_figures(report, variant)
    load = before.load or float(old.main)
    requests = min(before.requests, after.seen.requests)
    figures = {}
    k = None
    lengths = _lengths(after.conditions, _conditions(before))
    traffic = Cause(
        name="traffic",
        words=f"K and load are accounted for, so the traffic or the machine differs: {lengths}",
        effect=None,
    )
    if variant == "base":
        # Steps without drafts are those of a lookup, whose K is the engine's setting.
        drafts_always = before.total(DRAFTS) > 0.9 * before.steps
        k = before.k if drafts_always else float(before.most_drafts)
        # The report's lengths are of the same responses, the seen ones of different ones.
        paired = LogError(log_error(report.acceptance_ratio), 0.0)
        sampled = [
            replace(_length_error(old, before, after.logged), fixed=0.0),
            replace(after.length_error, fixed=0.0),
        ]
        figures[LENGTH_CHANGE] = figure_of(
            name=LENGTH_CHANGE,
            reported=after.custom.length(after.k) / old.length(k),
            at=f"K = {k:.3g}, then {after.k:.3g}",
            seen=after.seen.acceptance_length / before.acceptance_length,
            error=paired + sampled[0] + sampled[1],
            requests=requests,
            causes=[traffic],
        )
    figures[TPOT_CHANGE] = figure_of(
        name=TPOT_CHANGE,
        reported=after.custom.tpot_ms(after.load, after.k) / old.tpot_ms(load, k),
        at=f"{load:.3g} at once, then {after.load:.3g}",
        seen=after.seen.tpot_ms / before.tpot_ms,
        error=_tpot_error(old, before) + after.tpot_error,
        requests=requests,
        causes=[traffic],
    )
    return figures


def check_model(report: Report, scrapes: Sequence[Scrape]) -> None:
    """Refuses servers of a model that has another name than the report's target."""
    target = Path(report.target).name
    for scrape in scrapes:
        if Path(scrape.model).name.casefold() != target.casefold():
            raise OutriderError(
                f"{scrape.source}: the server's model is {scrape.model}, the report's {target}; if"
                f" it is the same model under another name, add --model {scrape.model}"
            )


def _check(window: MetricsWindow, option: str) -> None:
    """Refuses counts of too few requests."""
    if window.requests < LEAST_REQUESTS or window.later_tokens <= 0 or not window.steps:
        raise OutriderError(
            f"{option} {_sources(window)}: {window.requests} finished requests with"
            f" {max(window.later_tokens, 0):.0f} tokens after their first; at least"
            f" {LEAST_REQUESTS} are needed: scrape again after more traffic, or leave --since out"
        )


def _sources(window: MetricsWindow) -> str:
    return " ".join(server.source for server in window.servers)


def _length_error(variant: ExpectedFigures, window: MetricsWindow, logged: Conditions) -> LogError:
    """Error of seen over reported acceptance length."""
    requests = float(window.requests)
    if logged.response_tokens is not None:
        # Short responses have fewer steps to average over than the report's.
        requests = min(requests, max(window.later_tokens / logged.response_tokens, 1.0))
    of_requests = variant.length_error * math.sqrt(variant.responses / requests)
    of_drafts = math.sqrt(window.length_variance / window.steps) / window.acceptance_length
    return LogError(variant.length_error, math.hypot(of_requests, of_drafts))


def _tpot_error(variant: ExpectedFigures, window: MetricsWindow) -> LogError:
    """Error of seen over reported TPOT."""
    starts = START_NOISE * math.sqrt(1 + 1 / len(window.servers))
    timed = variant.request_noise / math.sqrt(variant.timed_requests)
    return LogError(math.hypot(starts, timed), variant.request_noise / math.sqrt(window.requests))


def _logged(report: Report, custom: ExpectedFigures) -> Conditions:
    """The report's conditions; lengths are those of the log."""
    return Conditions(
        requests=custom.responses,
        k=custom.k_at(custom.main),
        load=custom.main,
        prefix_hits=None,
        prompt_tokens=_logged_mean(report.traffic, "prompt"),
        response_tokens=_logged_mean(report.traffic, "completion"),
    )


def _conditions(window: MetricsWindow) -> Conditions:
    return Conditions(
        servers=len(window.servers),
        requests=window.requests,
        k=window.k,
        load=window.load,
        prefix_hits=window.prefix_hits,
        prompt_tokens=window.prompt_tokens,
        response_tokens=window.response_tokens,
    )


def _logged_mean(traffic: Mapping[str, object] | None, part: str) -> float | None:
    """Mean tokens of the log's prompts or completions, from the ingest's counts."""
    if traffic is None:
        return None
    lengths = traffic.get("lengths")
    tokens = traffic.get(f"{part}_tokens")
    if not isinstance(lengths, Mapping) or not isinstance(tokens, int):
        return None
    return tokens / lengths[part]["n"] if lengths[part]["n"] else None


def _lengths(seen: Conditions, reference: Conditions) -> str:
    """Mean lengths of prompts and responses in words."""
    return (
        f"prompts of {_tokens(seen.prompt_tokens, reference.prompt_tokens)},"
        f" responses of {_tokens(seen.response_tokens, reference.response_tokens)}"
    )


def _tokens(seen: float | None, reference: float | None) -> str:
    words = "unknown length" if seen is None else f"{seen:.0f} tokens"
    return words if reference is None else f"{words} instead of {reference:.0f}"


def _ratio(seen: float | None, logged: float | None) -> float | None:
    """Seen over logged, if both are known."""
    return seen / logged if seen is not None and logged else None
