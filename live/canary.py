"""The canary test: rising shares of traffic until there is a verdict.

    test = CanaryTest(fleet, router, new, old)
    test.measure_baseline()              # before the swap
    verdict = test.run()                 # promote or roll back, why, and by whom

Replicas differ in speed, and the router keeps each user on one replica. So the canary's replicas
are first compared with the others while all serve the old release at the fair share. The comparison
uses the requests whose counts the replicas still hold and, if these are too few, new ones.

A step passes after at least `min_requests` canary requests and `min_seconds`. A canary never gets
more than its fair share, because more load would slow it down. It can be promoted only in the last
step, at that share. It can be rolled back in any step: by the judge, because it finishes no
requests, or after `max_seconds`. `Decided` can end the test at any time: at an operator's request,
or with a rollback if a canary replica reverts its swap or stops answering.
"""

import contextlib
from collections.abc import Callable

from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import LOOK_S, Decided, Fleet, rolled_back
from outrider.live.judge import Arms, decide
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import Verdict
from outrider.live.traffic import Traffic

SILENCE_S = 5.0
"""Seconds without an answer after which a canary is rolled back."""

STALL_S, STALL_REQUESTS = 600.0, 20
"""A canary is rolled back if it finishes no request for STALL_S seconds in which, at the stable
replicas' rate, it should have finished STALL_REQUESTS. (A hung engine still reports its status.)"""


def fair_share(endpoint: Endpoint) -> float:
    """Percentage of requests that gives canary and stable replicas equal load."""
    return round(100 * len(endpoint.canary) / len(endpoint.replicas), 2)  # Envoy's resolution


class CanaryTest:
    """The test of a release against the one that all replicas serve."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        new: str,
        old: str,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        """`new` and `old`: names of the releases."""
        self._fleet, self._router, self._new, self._old = fleet, router, new, old
        self._endpoint = fleet.endpoint
        self._policy = fleet.endpoint.policy
        self._journal = fleet.journal
        self._say = fleet.say
        self._clock = fleet.clock
        self._on_verdict = on_verdict
        self._traffic = Traffic(self._endpoint, fleet, old, self._journal.read().steady_since)
        self._baseline: Arms = [], []
        self._silent_since: dict[str, float] = {}
        self._said_at = 0.0
        self._share = fair_share(self._endpoint)

    def measure_baseline(self) -> None:
        """Waits at most `max_seconds` for `baseline_requests` at the fair share.

        The canary's replicas still serve the old release.
        """
        began = self._clock.time()
        wanted = self._policy.baseline_requests
        while True:
            looked = self._clock.time()
            self._baseline = self._collect(self._old)
            count = len(self._baseline[1])
            now = self._clock.time()
            line = f"baseline: {count} of {wanted} requests of the canary's replicas"
            if count >= wanted or now - began > self._policy.max_seconds:
                self._say(line)
                return
            self._report(line)
            self._clock.sleep(max(LOOK_S, 5 * (now - looked)))

    def run(self) -> Verdict:
        """Runs all steps; the canary's replicas must serve the new release."""
        self._traffic.start_test(self._new, self._clock.time())
        fair = fair_share(self._endpoint)
        for share in (share for share in self._policy.shares if share < fair):
            verdict = self._step(share, is_last=False)
            if verdict.action == "roll_back":
                return verdict
        return self._step(fair, is_last=True)

    def _step(self, share: float, is_last: bool) -> Verdict:
        """Runs a step; the verdict `wait` means that the next step may begin."""
        self._share = share
        self._journal.append("share", percent=share)
        self._say(f"canary: {share:g} % of the requests")
        before = seen = len(self._collect(self._new)[1])
        began = alive_at = self._clock.time()
        pause, others = LOOK_S, 0
        while True:
            self._clock.sleep(pause)
            looked = self._clock.time()
            stable, canary = self._collect(self._new)
            verdict = decide(
                (stable, canary), self._baseline, self._policy, began if is_last else None
            )
            self._on_verdict(verdict)
            self._report(f"canary: {len(canary)} requests, stable {len(stable)}; {verdict.reason}")
            now = self._clock.time()
            count = len(canary)
            pause = max(LOOK_S, 5 * (now - looked))  # poll less often if polling takes long
            if count > seen:
                seen = count
                alive_at = now
                others = len(stable)
            enough = count - before >= self._policy.min_requests
            done = enough and now - began >= self._policy.min_seconds
            if verdict.action == "roll_back" or (
                done and (verdict.action == "promote" or not is_last)
            ):
                return verdict
            due = (len(stable) - others) * share / max(100 - share, 1)
            if now - alive_at > STALL_S and due >= STALL_REQUESTS:
                return Verdict(
                    "roll_back",
                    f"the canary finished no request in {STALL_S:g} s, and {due:.0f} were due",
                )
            if now - began > self._policy.max_seconds:
                return Verdict(
                    "roll_back",
                    f"undecided after {self._policy.max_seconds:.0f} s and"
                    f" {count} requests at {share:g} %: {verdict.reason}",
                    figures=verdict.figures,
                )

    def _collect(self, serving: str) -> Arms:
        """Returns all requests so far as (stable, canary).

        Raises `Decided` on an operator's request, or if a canary replica does not answer, is
        broken, or does not serve `serving`.
        """
        deployment = self._journal.read().open
        if deployment is not None and deployment.request is not None:
            raise Decided(deployment.request)
        for name in (each.name for each in self._endpoint.canary):
            status = self._fleet.status(name)
            if status is None:
                since = self._silent_since.setdefault(name, self._clock.time())
                if self._clock.time() - since >= SILENCE_S:
                    raise rolled_back(f"{name} does not answer")
                continue
            self._silent_since.pop(name, None)
            if status.broken:
                raise self._fleet.broken(name, status)
            if status.reverted == serving:
                raise self._fleet.reverted(name, status)
            if self._fleet.served_by(status) != serving:
                raise rolled_back(f"{name} was started again, or swapped by another controller")
        with contextlib.suppress(RouterUnavailable):  # after a restart, Envoy's share is 0
            if self._router.share() != self._share:
                self._router.set_canary_share(self._share)
        return self._traffic.collect()

    def _report(self, line: str) -> None:
        """Reports a line, at most once every ten seconds."""
        if self._clock.time() - self._said_at >= 10:
            self._said_at = self._clock.time()
            self._say(line)
