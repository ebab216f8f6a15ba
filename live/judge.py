"""The canary's verdict: promote, roll back, or wait, at any time and as often as one looks.

    decision = decide(stable, canary, endpoint.policy)
    decision.action, decision.reason

Promote: the canary's tokens/s per user are shown to be above 1 - margin of the stable one's, and no
guard looks broken. Roll back: they are shown to be below the stable one's, or a guard is shown to
be broken. Every bound holds at all looks together (common/anytime.py, `over_limit`), so that the
controller may look after every request and stop when it likes:

- a speculator that is slower by the margin is ever promoted with probability ALPHA at most;
- one that is equal is ever rolled back with probability ALPHA at most. ALPHA_SPEED of it is for
  speed, ALPHA_GUARD for each of the four guards.

Speed is that of a request's own decoding, the tokens after the first over the time from the first
to the last, and each request counts the same: the mean of log(tokens/s). Time to first token is
compared at equal prompt length, both at equal load (comparison.py). Failures and slow requests have
fixed limits: a session counts up to its first one, since a session that failed once tends to fail
again, on the same replica.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.common.anytime import Bounds
from outrider.live.comparison import compare
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.observations import Observation
from outrider.live.releases import Release
from outrider.serving.admin.replica import Watch

ALPHA = 0.05
"""Largest probability of a wrong promotion, and of a wrong rollback."""
ALPHA_SPEED, ALPHA_GUARD = 0.03, 0.005
"""ALPHA = ALPHA_SPEED + 4 ALPHA_GUARD."""

LEAST_TOKENS = 8
"""Completions with fewer tokens have no speed: their time is mostly that of one step."""

CELL_REQUESTS = 64
"""Consecutive requests that are compared with each other."""

SLOW_SHARE = 0.03
"""Largest share of the canary's requests above max_p99_latency_ratio times stable's p99. More than
1 %, because that percentile is estimated, from LEAST_TAIL_REQUESTS or more."""
LEAST_TAIL_REQUESTS = 200

OF_STABLE = 2.0
"""Failures may also be this many times as frequent as the stable ones', where both fail."""

WATCH_LEVEL = 0.01
"""Probability that a watch takes back a speculator that holds what its evidence promises. It comes
on top of the canary's ALPHA, once for each replica."""

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
    tail: float
    """E-value: evidence that the 99th percentile of latency is over its limit."""
    errors: float
    """E-value: evidence that more requests fail than allowed."""
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
    ttft = figures["ttft"]
    if errors >= 1 / ALPHA_GUARD:
        return "roll_back", (
            f"errors: {table.failures} of the canary's {int(table.canary.sum())} requests failed; "
            f"max_error_rate = {policy.max_error_rate:g}"
        )
    if tail >= 1 / ALPHA_GUARD:
        return "roll_back", (
            f"latency: more than {SLOW_SHARE:.0%} of the canary's requests are beyond stable's"
            f" 99th percentile; max_p99_latency_ratio = {policy.max_p99_latency_ratio:g}"
        )
    over = (("time to first token", ttft, "max_ttft_ratio", policy.max_ttft_ratio),)
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
    if ttft.value > policy.max_ttft_ratio:
        return "wait", f"time to first token: {_say(ttft)}; not clearly below max_ttft_ratio"
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
        """Evidence that the canary fails more requests than the limit, and than stable does."""
        stable = self.failed[~self.canary]
        rate = OF_STABLE * float(stable.mean()) if len(stable) else 0.0
        return self._more_often(self.failed, self.canary, max(limit, rate))

    def tail(self, limit: float) -> float:
        """Evidence that more than SLOW_SHARE of the canary's requests are beyond the limit."""
        stable = self.latency[self.valid & ~self.canary]
        if len(stable) < LEAST_TAIL_REQUESTS:
            return 1.0
        slow = self.latency > limit * np.quantile(stable, 0.99)
        return self._more_often(slow, self.valid & self.canary, SLOW_SHARE)

    def _more_often(
        self, event_N: NDArray[np.bool_], among_N: NDArray[np.bool_], limit: float
    ) -> float:
        """Evidence that an event is more frequent than the limit; sessions end at their first."""
        ended, events, trials = set[int](), 0, 0
        for session, event in zip(self.session[among_N], event_N[among_N], strict=True):
            if session not in ended:
                trials += 1
                if event:
                    events += 1
                    ended.add(session)
        return over_limit(events, trials, limit)


def over_limit(events: int, trials: int, limit: float) -> float:
    """E-value that an event has a probability above `limit` in each trial, whatever came before.

    The gain of a fair bet against the limit: it ever reaches 1 / alpha with probability alpha at
    most if the limit holds (Ville's inequality).
    """
    limit = min(max(limit, 1e-6), 1 - 1e-6)
    # Bets on probabilities from just above the limit to nearly 1, evenly in log odds.
    odds = math.log(limit / (1 - limit))
    bets_T = 1 / (1 + np.exp(-(odds + (6 - odds) * np.array([0.15, 0.3, 0.5, 0.75, 1.0]))))
    logs_T = events * np.log(bets_T / limit)
    logs_T += (trials - events) * np.log((1 - bets_T) / (1 - limit))
    return float(np.exp(np.minimum(logs_T, 700.0)).mean())


def watch_of(release: Release, policy: CanaryPolicy) -> Watch | None:
    """The least tokens per step that a replica must not be shown to fall short of after a swap.

    The evaluated acceptance length, lowered by the uncertainty of its ratio to the base's (the
    evidence has no interval of its own) and by `policy.min_acceptance_ratio`: live traffic differs
    a little from held-out traffic. None without evidence, or with `watch_requests: 0`.
    """
    lengths = (release.manifest.get("evidence") or {}).get("acceptance_length") or {}
    length = lengths.get("custom")
    if not policy.watch_requests or not length or not math.isfinite(length):
        return None
    ratio, low = lengths.get("ratio"), (lengths.get("ratio_ci95") or [None])[0]
    if ratio and low:
        length *= min(low / ratio, 1.0)
    # Tokens per step are at least 1 whatever the drafter does.
    return Watch(policy.watch_requests, max(length * policy.min_acceptance_ratio, 1.0), WATCH_LEVEL)
