"""The canary's verdict: promote, roll back, or wait, at any time and as often as one looks.

    decision = decide(stable, canary, endpoint.policy)
    decision.action, decision.reason

Promote: the canary's tokens/s per user are shown to be above 1 - margin of the stable one's, and no
guard looks broken. Roll back: they are shown to be below the stable one's, or a guard is shown to
be broken. Every bound holds at all looks together (common/anytime.py, rare_events.py), so that the
controller may look after every request and stop when it likes:

- a speculator that is slower by the margin is ever promoted with probability ALPHA at most;
- one that is equal is ever rolled back with probability ALPHA at most. ALPHA_SPEED of it is for
  speed, ALPHA_GUARD for each of the five guards.

Speed is that of a request's own decoding, the tokens after the first over the time from the first
to the last, and each request counts the same: the mean of log(tokens/s). Latency is compared at
equal length, time to first token at equal prompt length, all at equal load (comparison.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.common.anytime import Bounds
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.judge.comparison import compare
from outrider.live.judge.observations import Observation
from outrider.live.judge.rare_events import more_often, over_limit

ALPHA = 0.05
"""Largest probability of a wrong promotion, and of a wrong rollback."""
ALPHA_SPEED, ALPHA_GUARD = 0.03, 0.004
"""ALPHA = ALPHA_SPEED + 5 ALPHA_GUARD."""

LEAST_TOKENS = 8
"""Completions with fewer tokens have no speed: their time is mostly that of one step."""

CELL_REQUESTS = 64
"""Consecutive requests that are compared with each other."""
BLOCK_REQUESTS = 20
"""Consecutive requests among which events are a random draw. Smaller is decided sooner."""

TAIL_REQUESTS = 1000
"""The 99th percentile is that of so many requests before, ..."""
LEAST_TAIL_REQUESTS = 200
"""... and at least of so many."""

Action = Literal["wait", "promote", "roll_back"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """What to do with a canary, and the figures that say so. Ratios are canary / stable."""

    action: Action
    reason: str
    """One line, without customers' text."""
    speed: Bounds
    """Tokens/s of a request's own decoding, at equal load."""
    acceptance: Bounds
    """Tokens per step, 1 + accepted / drafts."""
    ttft: Bounds
    """Time to first token."""
    latency: Bounds
    """Time of a request of the same length: the typical one's."""
    tail: float
    """E-value: evidence that the 99th percentile of latency is over its limit."""
    errors: float
    """E-value: evidence that more requests fail than allowed, and more than the stable one's."""
    stable_requests: int
    canary_requests: int
    canary_sessions: int


def decide(
    stable: Sequence[Observation], canary: Sequence[Observation], policy: CanaryPolicy
) -> Decision:
    """The verdict from all requests since the canary got its first share.

    Requests of the stable replicas that began before the canary's first one are left out: their
    long ones would be compared with the canary's short ones, which are the first to end.
    """
    table = _Table(stable, canary)
    figures = {
        "speed": table.ratio(table.log_speed, [table.log_load], ALPHA, ALPHA_SPEED),
        "acceptance": table.ratio(table.log_acceptance, [], ALPHA_GUARD, ALPHA_GUARD),
        "ttft": table.ratio(
            table.log_ttft, [table.log_load, table.log_prompt], ALPHA_GUARD, ALPHA_GUARD
        ),
        "latency": table.ratio(
            table.log_latency, [table.log_load, table.log_tokens], ALPHA_GUARD, ALPHA_GUARD
        ),
    }
    tail, errors = table.tail(policy.max_p99_latency_ratio), table.errors(policy.max_error_rate)
    action, reason = _verdict(figures, tail, errors, table, policy)
    requests, canaries = len(table.canary), int(table.canary.sum())
    return Decision(
        action,
        reason,
        **figures,
        tail=tail,
        errors=errors,
        stable_requests=requests - canaries,
        canary_requests=canaries,
        canary_sessions=len(np.unique(table.session[table.canary])),
    )


def _verdict(
    figures: dict[str, Bounds], tail: float, errors: float, table: "_Table", policy: CanaryPolicy
) -> tuple[Action, str]:
    speed, acceptance = figures["speed"], figures["acceptance"]
    ttft, latency = figures["ttft"], figures["latency"]
    if errors >= 1 / ALPHA_GUARD:
        return "roll_back", (
            f"errors: {table.failures} of the canary's {int(table.canary.sum())} requests failed; "
            f"max_error_rate = {policy.max_error_rate:g}"
        )
    if tail >= 1 / ALPHA_GUARD:
        return "roll_back", (
            "latency: the canary has more of the slowest 1 % of the requests than its share; "
            f"max_p99_latency_ratio = {policy.max_p99_latency_ratio:g}"
        )
    over = (
        ("time to first token", ttft, "max_ttft_ratio", policy.max_ttft_ratio),
        ("latency", latency, "max_p50_latency_ratio", policy.max_p50_latency_ratio),
    )
    for name, ratio, key, limit in over:
        if ratio.low > limit:
            return "roll_back", f"{name}: {_say(ratio)}; {key} = {limit:g}"
    if acceptance.high < policy.min_acceptance_ratio:
        return "roll_back", (
            f"acceptance: {_say(acceptance)}; "
            f"min_acceptance_ratio = {policy.min_acceptance_ratio:g}"
        )
    if speed.high < 1:
        return "roll_back", f"speed: {_say(speed)}; slower"
    if not speed.low > 1 - policy.margin:
        if not math.isfinite(speed.value) and table.canary.any() and not table.canary.all():
            return "wait", "no requests of canary and stable at comparable load yet"
        return "wait", f"speed: {_say(speed)}; not yet above {1 - policy.margin:g}"
    if (requests := int(table.canary.sum())) < policy.min_requests:
        return "wait", f"{requests} of min_requests = {policy.min_requests}"
    if table.seconds < policy.min_seconds:
        return "wait", f"{table.seconds:.0f} s of min_seconds = {policy.min_seconds:g}"
    # Too few to show that a guard is broken, but enough not to promote against it.
    for name, ratio, key, limit in over:
        if ratio.value > limit:
            return "wait", f"{name}: {_say(ratio)}; not clearly below {key} = {limit:g}"
    if acceptance.value < policy.min_acceptance_ratio:
        return "wait", f"acceptance: {_say(acceptance)}; not clearly above min_acceptance_ratio"
    if errors > 1 and table.failures > policy.max_error_rate * requests:
        return "wait", f"errors: {table.failures} of {requests} requests failed"
    return "promote", f"speed: {_say(speed)}; above {1 - policy.margin:g}"


WIDEST_SAID = 100.0
"""An upper bound of a ratio beyond this says nothing."""


def _say(ratio: Bounds) -> str:
    if not math.isfinite(ratio.value):
        return "not known"
    if not ratio.high < WIDEST_SAID:
        return f"{ratio.value:.3f} of stable's, too few sessions ({ratio.clusters}) for bounds"
    return (
        f"{ratio.value:.3f} of stable's ({ratio.low:.3f} to {ratio.high:.3f}, "
        f"{ratio.clusters} sessions)"
    )


class _Table:
    """The requests of both as columns, in order of their end."""

    def __init__(self, stable: Sequence[Observation], canary: Sequence[Observation]) -> None:
        since = min((each.finished_at - each.latency_s for each in canary), default=-math.inf)
        rows = [(each, False) for each in stable if each.finished_at - each.latency_s >= since]
        rows = sorted(rows + [(each, True) for each in canary], key=lambda row: row[0].finished_at)

        def column(values: list[float]) -> Array:
            return np.array(values, dtype=np.float64)

        self.canary = np.array([arm for _, arm in rows], dtype=bool)
        names = [each.session for each, _ in rows]
        self.session = np.unique(names, return_inverse=True)[1].astype(np.intp)
        self.failed = np.array([each.failed for each, _ in rows], dtype=bool)
        self.failures = int((self.failed & self.canary).sum())
        self.latency = column([each.latency_s for each, _ in rows])
        tokens = column([each.completion_tokens for each, _ in rows])
        decode = column([each.decode_s for each, _ in rows])
        drafts = column([each.drafts for each, _ in rows])
        accepted = column([each.accepted for each, _ in rows])
        ttft = column([each.ttft_s for each, _ in rows])
        known = ~self.failed & np.array([not each.mixed for each, _ in rows], dtype=bool)

        def log_where(valid: NDArray[np.bool_], values: Array) -> Array:
            valid = known & valid & (values > 0)
            return np.where(valid, np.log(np.where(valid, values, 1.0)), np.nan)

        everywhere = np.ones(len(rows), bool)
        speed = (tokens - 1) / np.where(decode > 0, decode, np.inf)
        self.log_speed = log_where(tokens >= LEAST_TOKENS, speed)
        self.log_acceptance = log_where(drafts > 0, 1 + accepted / np.maximum(drafts, 1))
        self.log_ttft = log_where(everywhere, ttft)
        self.log_latency = log_where(tokens > 0, self.latency)
        self.log_tokens = np.log(np.maximum(tokens, 1))
        self.log_prompt = np.log(np.maximum(column([e.prompt_tokens for e, _ in rows]), 1))
        self.log_load = np.log(np.maximum(column([each.load for each, _ in rows]), 1))
        self.valid = known
        ends = column([each.finished_at for each, arm in rows if arm])
        self.seconds = float(ends.max() - since) if len(ends) else 0.0

    def ratio(
        self, logs: Array, covariates: list[Array], alpha_low: float, alpha_high: float
    ) -> Bounds:
        """Canary / stable from the requests that have the figure."""
        kept = np.isfinite(logs)
        cells = np.arange(len(logs)) // CELL_REQUESTS
        if covariates:  # the first one is the load: octaves, so that a line is enough within
            cells = cells * 64 + np.floor(self.log_load / math.log(2)).astype(np.intp)
        matrix = np.stack(covariates, axis=1) if covariates else np.zeros((len(logs), 0))
        return compare(
            logs[kept], self.canary[kept], cells[kept], matrix[kept], self.session[kept]
        ).bounds(alpha_low, alpha_high)

    def errors(self, limit: float) -> float:
        """Evidence that both hypotheses are wrong: within the limit, and not worse than stable."""
        blocks = np.arange(len(self.failed)) // BLOCK_REQUESTS
        complete = slice(0, len(self.failed) // BLOCK_REQUESTS * BLOCK_REQUESTS)
        worse = more_often(
            self.failed[complete], self.canary[complete], blocks[complete], self.session[complete]
        )
        # A session is counted up to its first failure: its later ones are not new evidence.
        failed, session = self.failed[self.canary], self.session[self.canary]
        before = np.zeros(len(failed), bool)
        first: dict[int, int] = {}
        for index in np.flatnonzero(failed):
            first.setdefault(int(session[index]), int(index))
        for each, index in first.items():
            before |= (session == each) & (np.arange(len(failed)) > index)
        return min(worse, over_limit(len(first), int((~before).sum()), limit))

    def tail(self, limit: float) -> float:
        """Evidence that the canary's latency / limit is more often among the slowest.

        The slowest are those above the 99th percentile of earlier requests, of both.
        """
        canary, session = self.canary[self.valid], self.session[self.valid]
        scaled = np.where(canary, self.latency[self.valid] / limit, self.latency[self.valid])
        count = len(scaled) // BLOCK_REQUESTS * BLOCK_REQUESTS
        slow = np.zeros(count, bool)
        for start in range(0, count, BLOCK_REQUESTS):
            if start >= LEAST_TAIL_REQUESTS:
                limit_here = np.quantile(scaled[max(start - TAIL_REQUESTS, 0) : start], 0.99)
                block = slice(start, start + BLOCK_REQUESTS)
                slow[block] = scaled[block] > limit_here
        blocks = np.arange(count) // BLOCK_REQUESTS
        return more_often(slow, canary[:count], blocks, session[:count])
