"""The canary's verdict: promote, roll back, or wait, valid at every look.

    verdict = decide_canary(test, baseline, endpoint.policy, fair_since)
    verdict.action, verdict.reason
    if verdict.action == "second_baseline":                # with the old release, after the test
        verdict = decide_canary(test, second, endpoint.policy, fair_since, is_second=True)

Speed is compared once the canary has its fair share, so that all replicas have the same load. It is
measured in tokens/s per user: the tokens after the first, divided by the time from the first to the
last. Replicas and their users differ, so the ratio of the canary's speed to stable's is divided by
the same ratio in the baseline period, when all replicas served the old release. The bounds of this
quotient, from sessions of both periods, are valid at all looks simultaneously (common/anytime.py):

- a speculator that is slower by `policy.margin` is promoted with a probability of at most ALPHA;
- an equally fast one is rolled back for its speed with a probability of at most ALPHA.

A replica may become slower after the baseline, for example by a neighbor or its clock. So a canary
that looks slower gets the old release back, and a second baseline takes the place of the first.
Only then can it be rolled back for its speed. If it is not, the test continues with the new
release.

The clusters are the values of the router's sticky header. If it names users, they are in both
periods and compared with themselves; what a release gains for each is noise between them.

Errors, latency and acceptance have fixed limits. Too many errors cause a rollback at any share.
Latency or acceptance outside its limit only prevents a promotion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from outrider.common.anytime import BEST_AT, Bounds, ratio_of_groups
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.state import Action, DeploymentVerdict, Figures
from outrider.live.traffic import Observation
from outrider.serving.admin.replica import LiveRequest

ALPHA = 0.05
"""Largest probability of a wrong promotion, and of a wrong rollback for speed."""

DOUBT_ALPHA = 0.25
"""`ALPHA` of the bounds that begin a second baseline. It decides nothing by itself."""

LEAST_TOKENS = 8
"""Completions with fewer tokens are not timed, because one step takes most of their time."""

LEAST_SESSIONS = 5
"""Minimum number of sessions per role to compare speeds; their spread determines the bounds."""

LEAST_FAILURES = 3
"""Minimum number of failed requests for a rollback; they must also exceed the limit."""

OF_STABLE = 2.0
"""The canary's failure rate may reach this multiple of stable's, even above `max_error_rate`."""

LEAST_TAIL_REQUESTS = 200
"""Minimum number of requests per role to compare 99th percentiles."""

Arms = tuple[Sequence[Observation], Sequence[Observation]]
"""Requests of the stable and of the canary replicas."""

Requests = Sequence[tuple[Observation, LiveRequest]]
"""The compared requests, each with its replica's counts."""

ComparedArms = tuple[Requests, Requests]
"""The compared requests of the stable and of the canary replicas."""


@dataclass(frozen=True)
class _Sessions:
    """Sessions, or users if the sticky header names them."""

    names: list[str]
    speed: tuple[list[float], list[float]]
    """Tokens after the first, and seconds of decoding, for each session."""


def decide_canary(
    test: Arms,
    baseline: Arms,
    policy: CanaryPolicy,
    fair_since: float | None,
    is_second: bool = False,
) -> DeploymentVerdict:
    """Decides from all requests since the canary got its first share.

    `baseline`: requests of the same replicas at the fair share, all with the old release.
    `fair_since`: Unix time when the canary got its fair share; None before then.
    `is_second`: whether `baseline` was measured after the canary looked slower.

    Figures are canary / stable ratios, divided by the same ratio in the baseline: `speed` as
    [value, low, high], `acceptance`, `ttft`, `latency_p99`. `replica` is the canary / stable ratio
    of speeds in the baseline. Counts are `stable_requests`, `canary_requests`, `failures`. Unknown
    figures are None.
    """
    stable, canary = test
    failures = _failures(canary)
    failure_rate = _failures(stable) / max(len(stable), 1)
    # Stable's rate counts too: what makes both fail is not the new release's fault.
    allowed = max(policy.max_error_rate, OF_STABLE * failure_rate) * len(canary)
    figures: Figures = {
        "stable_requests": len(stable),
        "canary_requests": len(canary),
        "failures": failures,
    }
    if failures >= LEAST_FAILURES and failures > allowed:
        reason = (
            f"errors: {failures} of the canary's {len(canary)} requests failed;"
            f" max_error_rate = {policy.max_error_rate:g}"
        )
        return DeploymentVerdict("roll_back", reason, "judge", figures)
    if fair_since is None:
        return DeploymentVerdict("wait", "not yet at the fair share", "judge", figures)
    stable_before, canary_before = baseline
    now = (_compared(stable, fair_since), _compared(canary, fair_since))
    before = (_compared(stable_before, 0.0), _compared(canary_before, 0.0))
    sessions_now = (_sessions(now[0]), _sessions(now[1]))
    sessions_before = (_sessions(before[0]), _sessions(before[1]))
    for when, arms in (("", sessions_now), (" before the swap", sessions_before)):
        if min(len(sessions.names) for sessions in arms) < LEAST_SESSIONS:
            reason = f"speed: fewer than {LEAST_SESSIONS} sessions of canary or stable{when}"
            return DeploymentVerdict("wait", reason, "judge", figures)
    speed = _speed(sessions_now, sessions_before, ALPHA)
    stable_sessions, canary_sessions = (sessions.speed for sessions in sessions_before)
    replica = ratio_of_groups([canary_sessions], [stable_sessions], ALPHA).value
    limits = _limits(now, before, policy)
    figures.update(_ratio_figures(speed, replica, limits))
    doubted = speed if is_second else _speed(sessions_now, sessions_before, DOUBT_ALPHA)
    if doubted.high < 1:
        action: Action = "roll_back" if is_second else "second_baseline"
        cause = "slower" if is_second else "slower, or its replicas became slower"
        return DeploymentVerdict(action, f"speed: {_say(speed)}; {cause}", "judge", figures)
    least = 1 - policy.margin
    # The lower bound is 0 while it is unknown (common/anytime.py), which is never enough.
    if not speed.low > least:
        return DeploymentVerdict(
            "wait", f"speed: {_say(speed)}; not yet above {least:g}", "judge", figures
        )
    for limit in limits:
        if not limit.holds:
            reason = f"{limit.name}: {limit.ratio:.3f} of stable's; {limit.demand}"
            return DeploymentVerdict("wait", reason, "judge", figures)
    if failures > allowed:
        return DeploymentVerdict("wait", f"errors: {failures} requests failed", "judge", figures)
    return DeploymentVerdict("promote", f"speed: {_say(speed)}; above {least:g}", "judge", figures)


def _ratio_figures(speed: Bounds, replica: float, limits: "Sequence[Limit]") -> Figures:
    bounds = (speed.value, speed.low, speed.high)
    figures: Figures = {
        "replica": replica,
        "speed": [value if math.isfinite(value) else None for value in bounds],
    }
    for limit in limits:
        figures[limit.name] = limit.ratio
    return figures


def _failures(requests: Sequence[Observation]) -> int:
    return sum(request.failed for request in requests)


def _speed(
    now: tuple[_Sessions, _Sessions], before: tuple[_Sessions, _Sessions], alpha: float
) -> Bounds:
    """Canary / stable in the test, corrected by the baseline."""
    stable_now, canary_now = now
    stable_before, canary_before = before
    # (canary now / stable now) / (canary before / stable before)
    above = [canary_now, stable_before]
    below = [stable_now, canary_before]
    # Chosen by the size of the baseline, not by what the test shows.
    best_at = max(BEST_AT, len(canary_before.names))
    return ratio_of_groups(
        above=[sessions.speed for sessions in above],
        below=[sessions.speed for sessions in below],
        alpha=alpha,
        best_at=best_at,
        names=[sessions.names for sessions in [*above, *below]],
    )


def _compared(requests: Sequence[Observation], since: float) -> Requests:
    return [
        (request, request.live)
        for request in requests
        if request.started_at >= since and request.live
    ]


def _sessions(requests: Requests) -> _Sessions:
    tokens: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for request, live in requests:
        if not request.failed and live.completion_tokens >= LEAST_TOKENS and live.decode_s > 0:
            session = request.session
            tokens[session] = tokens.get(session, 0) + live.completion_tokens - 1
            seconds[session] = seconds.get(session, 0) + live.decode_s
    return _Sessions([*tokens], ([*tokens.values()], [*seconds.values()]))


LimitName = Literal["acceptance", "ttft", "latency_p99"]


@dataclass(frozen=True)
class Limit:
    """A fixed limit of the policy."""

    name: LimitName
    ratio: float | None
    """Canary / stable, divided by the same ratio in the baseline; None if unknown."""
    demand: str
    """The policy's key and value."""
    holds: bool
    """Also true while the ratio is unknown."""


def _limits(test: ComparedArms, baseline: ComparedArms, policy: CanaryPolicy) -> list[Limit]:
    """Checks acceptance, time to first token and tail latency."""
    acceptance, ttft, tail = (
        _ratio(now, before) if before is not None else now
        for now, before in zip(_ratios(*test), _ratios(*baseline), strict=True)
    )
    least = policy.min_acceptance_ratio
    return [
        Limit(
            name="acceptance",
            ratio=acceptance,
            demand=f"min_acceptance_ratio = {least:g}",
            holds=acceptance is None or acceptance >= least,
        ),
        _upper_limit("ttft", ttft, "max_ttft_ratio", policy.max_ttft_ratio),
        _upper_limit("latency_p99", tail, "max_p99_latency_ratio", policy.max_p99_latency_ratio),
    ]


def _upper_limit(name: LimitName, ratio: float | None, key: str, most: float) -> Limit:
    holds = ratio is None or ratio <= most
    return Limit(name=name, ratio=ratio, demand=f"{key} = {most:g}", holds=holds)


def _ratios(stable: Requests, canary: Requests) -> tuple[float | None, float | None, float | None]:
    """Canary / stable ratios of acceptance, median TTFT and 99th-percentile latency."""
    stable_length, stable_ttft, stable_tail = _figures(stable)
    canary_length, canary_ttft, canary_tail = _figures(canary)
    # Below 200 requests, fewer than two lie above the 99th percentile.
    tail = None
    if min(len(stable), len(canary)) >= LEAST_TAIL_REQUESTS:
        tail = _ratio(canary_tail, stable_tail)
    return _ratio(canary_length, stable_length), _ratio(canary_ttft, stable_ttft), tail


def _figures(requests: Requests) -> tuple[float | None, float | None, float | None]:
    """Tokens per step (1 + accepted / steps), median TTFT, 99th-percentile latency."""
    steps = sum(live.drafts for _, live in requests)
    length = 1 + sum(live.accepted for _, live in requests) / steps if steps else None
    times = [(live.ttft_s, request.latency_s) for request, live in requests if not request.failed]
    if not times:
        return length, None, None
    ttft, latency = zip(*times, strict=True)
    return length, float(np.quantile(ttft, 0.5)), float(np.quantile(latency, 0.99))


def _ratio(canary: float | None, stable: float | None) -> float | None:
    return canary / stable if canary is not None and stable else None


def _say(ratio: Bounds) -> str:
    if not math.isfinite(ratio.value):
        return "not known"
    if not math.isfinite(ratio.high):
        return f"{ratio.value:.3f} of stable's, too few sessions ({ratio.clusters}) for bounds"
    return (
        f"{ratio.value:.3f} of stable's ({ratio.low:.3f} to {ratio.high:.3f}, "
        f"{ratio.clusters} sessions)"
    )
