"""The canary's test: shares of the traffic, step by step, until there is a verdict.

    verdict = test_canary(deployment, ...)      # promote or roll back, why, and by whom

A step ends after `min_requests` requests of the canary and `min_seconds`. A canary never gets more
than its fair share, that of a replica like the others: above it, it would be the slower one for
its load. In the last step, stable and canary replicas have the same load, and only there the
canary can be promoted. It can be rolled back in any step, by the judge, by the replica's own watch,
by a person, or because it does not answer or ends no request.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.live.control import take_request
from outrider.live.endpoint_file import CanaryPolicy, Endpoint
from outrider.live.fleet import LOOK_S, Fleet
from outrider.live.judge import Decision
from outrider.live.observations import Observation
from outrider.live.parts import Parts
from outrider.live.releases import Release, release_name
from outrider.live.router import RouterUnavailable
from outrider.live.state import Action
from outrider.live.traffic import Role, Traffic

SILENCE_S = 5.0
"""How long a canary may give no answer before it is rolled back, in seconds."""

STALL_S = 600.0
"""A canary that has requests and ends none of them for this long is rolled back, in seconds."""

_SAY_S = 10.0
"""Time between two reports of the figures, in seconds."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What becomes of the new release."""

    action: Action
    reason: str
    by: str
    """judge, watch, operator or controller."""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


def fair_share(endpoint: Endpoint) -> float:
    """Percent of the requests with which canary and stable replicas have the same load."""
    return round(100 * len(endpoint.canary) / len(endpoint.replicas), 2)  # as fine as Envoy has it


def steps_of(policy: CanaryPolicy, fair: float) -> list[float]:
    """The canary's shares in percent: those of the policy below the fair one, and the fair one."""
    return [*(share for share in policy.shares if share < fair), fair]


class CanaryTest:
    """One canary's test."""

    def __init__(
        self,
        endpoint: Endpoint,
        fleet: Fleet,
        parts: Parts,
        new: Release,
        old: str,
        directories: Mapping[str, str],
    ) -> None:
        """`old`: name of the stable release. `directories`: what servers may be started with."""
        self._endpoint, self._policy, self._fleet = endpoint, endpoint.policy, fleet
        self._router, self._journal, self._decide = parts.router, parts.journal, parts.decide
        self._clock, self._events, self._say = parts.clock, parts.events, parts.say
        self._new = new
        roles: dict[str, Role] = {each.name: each.role for each in endpoint.replicas}
        releases: dict[Role, str] = {"stable": old, "canary": new.name}
        self._traffic = Traffic(fleet.replicas, parts.router, roles, releases, directories)
        self._silent_since: dict[str, float] = {}
        self._counted: set[tuple[float, str]] = set()
        self._canary_requests, self._canary_ended = 0, False
        self._alive_at = 0.0  # when the canary last had no requests, or ended one
        self._said = 0.0
        self._share = 0.0
        self._router_answers = True

    def run(self) -> Verdict:
        """Goes through the steps. The canary replicas serve the new release already."""
        steps = steps_of(self._policy, fair_share(self._endpoint))
        self._alive_at = self._clock.time()
        self._traffic.begin(self._alive_at)
        for step, share in enumerate(steps):
            self._set_share(share)
            verdict = self._step(is_last=step == len(steps) - 1)
            if verdict is not None:
                return verdict
        raise AssertionError("the last step has a verdict")

    def _step(self, is_last: bool) -> Verdict | None:
        """The verdict of a step; None when the next one may begin."""
        began, before = self._clock.time(), self._canary_requests
        pause, held = LOOK_S, False
        while True:
            self._clock.sleep(pause)
            if (verdict := self._trouble()) is not None:
                return verdict
            looked = self._clock.time()
            stable, canary = self._observe()
            if (verdict := self._stall()) is not None:
                return verdict
            decision = self._decide(stable, canary, self._policy)
            self._report(decision)
            if decision.action == "roll_back":
                return Verdict("roll_back", decision.reason, "judge", figures_of(decision))
            now = self._clock.time()
            pause = max(LOOK_S, 5 * (now - looked))  # many requests: fewer looks
            enough = len(canary) - before >= self._policy.min_requests
            if enough and now - began >= self._policy.min_seconds:
                if not is_last:
                    return None
                if decision.action == "promote":
                    return Verdict("promote", decision.reason, "judge", figures_of(decision))
            if now - began > self._policy.max_seconds and not held:
                reason = (
                    f"undecided after {self._policy.max_seconds:.0f} s and {len(canary)} requests"
                    f" at {self._share:g} %: {decision.reason}"
                )
                if self._policy.on_undecided == "roll_back":
                    return Verdict("roll_back", reason, "controller", figures_of(decision))
                held = True
                self._say(f"{reason}; held, until --promote or --rollback")

    def _trouble(self) -> Verdict | None:
        """A verdict without figures: a person's, the watch's, or of something that broke."""
        if (request := take_request(self._endpoint.state_dir)) is not None:
            return Verdict(request.action, "by request", request.by)
        if self._journal.low_on_space:
            return Verdict("roll_back", "no space left on the disk", "controller")
        for name in (each.name for each in self._endpoint.canary):
            status = self._fleet.status(name)
            if status is None:
                since = self._silent_since.setdefault(name, self._clock.time())
                if self._clock.time() - since >= SILENCE_S:
                    return Verdict("roll_back", f"{name} does not answer", "controller")
                continue
            self._silent_since.pop(name, None)
            if status.broken:
                reason = f"{name} drafts wrongly until it is started again: {status.broken}"
                return Verdict("roll_back", reason, "controller")
            if status.reverted == self._new.name:
                return Verdict("roll_back", str(self._fleet.reverted(name, status)), "watch")
            if release_name(status.digest) != self._new.name:
                reason = f"{name} was started again or exchanged by somebody else"
                return Verdict("roll_back", reason, "controller")
        self._keep_share()
        return None

    def _stall(self) -> Verdict | None:
        """A verdict if the canary has requests and has ended none for too long.

        A replica whose engine hangs still reports its status.
        """
        now, limit = self._clock.time(), STALL_S
        try:
            idle = not self._router.active("canary")
        except RouterUnavailable:
            idle = True
        if idle or self._canary_ended:
            self._alive_at = now
        if now - self._alive_at <= limit:
            return None
        reason = f"the canary has requests and ended none of them in {limit:g} s"
        return Verdict("roll_back", reason, "controller")

    def _set_share(self, percent: float) -> None:
        self._share = percent
        self._journal.append("share", percent=percent)
        self._keep_share()
        self._say(f"canary: {percent:g} % of the requests")

    def _keep_share(self) -> None:
        """Sets the share where it is another one: after a restart, Envoy has its first one."""
        try:
            if self._router.share() != self._share:
                self._router.set_canary_share(self._share)
                self._events.share(self._share)
            self._router_answers = True
        except RouterUnavailable as error:
            if self._router_answers:
                self._say(f"{error}; the share is set again once it answers")
            self._router_answers = False

    def _observe(self) -> tuple[Sequence[Observation], Sequence[Observation]]:
        stable, canary = self._traffic.collect()
        groups: list[tuple[Role, list[Observation]]] = [("stable", stable), ("canary", canary)]
        for role, found in groups:
            # A request is joined when both logs have it, which is not in the order of their ends.
            keys = {(each.finished_at, each.session): each for each in found}
            self._events.observed(role, [keys[key] for key in keys.keys() - self._counted])
            self._counted |= keys.keys()
        self._canary_ended = len(canary) > self._canary_requests
        self._canary_requests = len(canary)
        return stable, canary

    def _report(self, decision: Decision) -> None:
        bounds = {name: (b.low, b.high) for name, b in _bounds(decision).items()}
        self._events.decided(decision.action, bounds)
        if self._clock.time() - self._said >= _SAY_S:
            self._said = self._clock.time()
            self._say(
                f"canary: {decision.canary_requests} requests, stable {decision.stable_requests};"
                f" {decision.reason}"
            )


def _bounds(decision: Decision) -> dict[str, Any]:
    names = ("speed", "acceptance", "ttft")
    return {name: getattr(decision, name) for name in names}


def figures_of(decision: Decision) -> dict[str, Any]:
    """A decision's figures for the journal; bounds that are not finite are None."""
    figures: dict[str, Any] = {
        "stable_requests": decision.stable_requests,
        "canary_requests": decision.canary_requests,
    }
    for name, bounds in _bounds(decision).items():
        values = (bounds.value, bounds.low, bounds.high)
        figures[name] = [v if abs(v) < float("inf") else None for v in values]
    return figures
