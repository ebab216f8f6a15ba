"""The canary test: rising shares of traffic until there is a verdict.

    test = CanaryTest(fleet, router, new, old)
    test.measure_baseline()
    test.swap(new, watched=True)
    verdict = test.run()                 # promote or roll back, why, and by whom

Replicas differ in speed, and the router keeps each user on one replica. So the canary's replicas
are first compared with the others while all serve the old release at the fair share. The comparison
uses the requests whose counts the replicas still hold and, if these are too few, new ones.

A canary that looks slower gets the old release back for a second baseline, because its replicas may
have become slower. If this baseline confirms it, the canary is rolled back; otherwise it gets the
new release again, and the last step continues with the second baseline in place of the first.

A step passes after at least `min_requests` canary requests and `min_seconds`. A canary never gets
more than its fair share, because more load would slow it down. It can be promoted only in the last
step, at that share. It can be rolled back in any step: by the judge, because it finishes no
requests, or after `max_seconds`. `DecisionReached` can end the test at any time: at an operator's
request, or with a rollback if a canary replica reverts its swap or stops answering.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import LOOK_S, DecisionReached, Fleet, rollback_decision
from outrider.live.judge import Arms, decide_canary
from outrider.live.releases import Release
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import DeploymentVerdict
from outrider.live.traffic import LiveTraffic

SILENCE_S = 5.0
"""Seconds without an answer after which a canary is rolled back."""

STALL_S = 600.0
STALL_REQUESTS = 20
"""A canary is rolled back if it finishes no request for STALL_S seconds in which, at the stable
replicas' rate, it should have finished STALL_REQUESTS. (A hung engine still reports its status.)"""


def fair_share(endpoint: Endpoint) -> float:
    """Percentage of requests that gives canary and stable replicas equal load."""
    return round(100 * len(endpoint.canary) / len(endpoint.replicas), 2)  # Envoy's resolution


@dataclass
class Progress:
    """When the canary last finished a request, in one step of the test."""

    share: float
    """The canary's share in percent."""
    at: float
    """Time of the last look at which the canary had finished new requests, in seconds."""
    canary: int
    """Requests that the canary had finished then."""
    stable: int
    """Requests that the stable replicas had finished then."""

    def count_requests(self, now: float, stable: int, canary: int) -> None:
        """Counts the finished requests of both roles."""
        if canary > self.canary:
            self.at = now
            self.canary = canary
            self.stable = stable

    def stall(self, now: float, stable: int) -> str | None:
        """Describes a stall; None while the canary may only be idle."""
        # The canary gets `share` requests for every 100 - share of the stable replicas.
        due = (stable - self.stable) * self.share / max(100 - self.share, 1)
        if now - self.at <= STALL_S or due < STALL_REQUESTS:
            return None
        return f"the canary finished no request in {STALL_S:g} s, and {due:.0f} were due"


class CanaryTest:
    """The test of a release against the one that all replicas serve."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        new: Release,
        old: Release,
        on_verdict: Callable[[DeploymentVerdict], None] = lambda verdict: None,
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._new = new
        self._old = old
        self._endpoint = fleet.endpoint
        self._policy = fleet.endpoint.policy
        self._journal = fleet.journal
        self._say = fleet.say
        self._clock = fleet.clock
        self._on_verdict = on_verdict
        steady_since = self._journal.read().steady_since
        self._traffic = LiveTraffic(self._endpoint, fleet, old.name, steady_since)
        self._baseline: Arms = ([], [])
        self._is_second = False  # whether that is the second baseline
        self._test: Arms = ([], [])
        self._before_second: Arms = ([], [])  # the part of the test before the second baseline
        self._fair_since: float | None = None
        self._silent_since: dict[str, float] = {}
        self._said_at = 0.0
        self._share = fair_share(self._endpoint)

    def measure_baseline(self) -> None:
        """Waits at most `max_seconds` for `baseline_requests` at the fair share.

        The canary's replicas still serve the old release.
        """
        for requests in self._growing_baseline("baseline"):
            self._baseline = requests

    def _growing_baseline(self, name: str) -> Iterator[Arms]:
        """Yields all requests of the old release so far, until there are enough."""
        began = self._clock.monotonic()
        needed = self._policy.baseline_requests
        while True:
            looked_at = self._clock.monotonic()
            requests = self._collect(self._old)
            yield requests
            count = len(requests[1])
            now = self._clock.monotonic()
            line = f"{name}: {count} of {needed} requests of the canary's replicas"
            if count >= needed or now - began > self._policy.max_seconds:
                self._say(line)
                return
            self._report(line)
            self._clock.sleep(_pause(now - looked_at))

    def swap(self, release: Release, watched: bool) -> None:
        """Swaps the canary's replicas; raises the errors of `Fleet.swap`."""
        for replica in self._endpoint.canary:
            status = self._fleet.replicas[replica.name].status()
            self._fleet.swap(replica.name, status, release, watched)

    def run(self) -> DeploymentVerdict:
        """Runs all steps; the canary's replicas must serve the new release."""
        # After the swap: requests that began before it were drafted by the old release.
        self._traffic.start_over(self._new.name, self._clock.time())
        fair = fair_share(self._endpoint)
        for share in (share for share in self._policy.shares if share < fair):
            verdict = self._step(share, is_last=False)
            if verdict.action == "roll_back":
                return verdict
        verdict = self._step(fair, is_last=True)
        if verdict.action == "second_baseline":
            verdict = self._confirm(verdict)
        if verdict.action == "wait":
            verdict = self._step(fair, is_last=True)
        return verdict

    def _confirm(self, slower: DeploymentVerdict) -> DeploymentVerdict:
        """Measures a second baseline; the verdict `wait` means that the test continues."""
        # In the journal, for the status. A controller that finds it there rolls back.
        self._journal.append("verdict", **vars(replace(slower, action="wait")))
        self._say(f"canary: {slower.reason}; back to the old release for a second baseline")
        self.swap(self._old, watched=False)
        self._traffic.start_over(self._old.name, self._clock.time())
        self._before_second = self._test
        self._is_second = True
        for requests in self._growing_baseline("second baseline"):
            self._baseline = requests
            verdict = self._decide()
            if verdict.action == "roll_back":
                return verdict
        self._say(f"canary: not slower by the second baseline; {verdict.reason}")
        self.swap(self._new, watched=True)
        self._traffic.start_over(self._new.name, self._clock.time())
        return replace(verdict, action="wait")

    def _decide(self) -> DeploymentVerdict:
        """The judge's verdict on the test so far."""
        verdict = decide_canary(
            test=self._test,
            baseline=self._baseline,
            policy=self._policy,
            fair_since=self._fair_since,
            is_second=self._is_second,
        )
        self._on_verdict(verdict)
        return verdict

    def _look(self) -> None:
        """Reads the requests of the test so far."""
        stable, canary = self._collect(self._new)
        stable_before, canary_before = self._before_second
        self._test = ([*stable_before, *stable], [*canary_before, *canary])

    def _step(self, share: float, is_last: bool) -> DeploymentVerdict:
        """Runs a step; the verdict `wait` means that the next step may begin."""
        self._share = share
        self._journal.append("share", percent=share)
        self._say(f"canary: {share:g} % of the requests")
        self._look()
        stable, canary = map(len, self._test)
        before = canary
        began = self._clock.monotonic()
        if is_last and self._fair_since is None:
            self._fair_since = self._clock.time()
        progress = Progress(share, at=began, canary=canary, stable=stable)
        pause = LOOK_S
        while True:
            self._clock.sleep(pause)
            looked_at = self._clock.monotonic()
            self._look()
            stable, canary = map(len, self._test)
            verdict = self._decide()
            self._report(f"canary: {canary} requests, stable {stable}; {verdict.reason}")
            now = self._clock.monotonic()
            pause = _pause(now - looked_at)
            progress.count_requests(now, stable=stable, canary=canary)
            is_long_enough = (
                canary - before >= self._policy.min_requests
                and now - began >= self._policy.min_seconds
            )
            may_pass = verdict.action == "promote" or not is_last
            is_slow = verdict.action in ("roll_back", "second_baseline")
            if is_slow or (is_long_enough and may_pass):
                return verdict
            stall = progress.stall(now, stable=stable)
            if stall is not None:
                return DeploymentVerdict("roll_back", stall)
            if now - began > self._policy.max_seconds:
                return DeploymentVerdict(
                    "roll_back",
                    f"undecided after {self._policy.max_seconds:.0f} s and"
                    f" {canary} requests at {share:g} %: {verdict.reason}",
                    figures=verdict.figures,
                )

    def _collect(self, serving: Release) -> Arms:
        """Returns all requests so far as (stable, canary), since the traffic last started over.

        Raises `DecisionReached` on an operator's request, or if a canary replica does not answer,
        is broken, or does not serve `serving`.
        """
        deployment = self._journal.read().open
        if deployment is not None and deployment.request is not None:
            raise DecisionReached(deployment.request)
        for replica in self._endpoint.canary:
            self._check_canary(replica.name, serving.name)
        with contextlib.suppress(RouterUnavailable):  # after a restart, Envoy's share is 0
            if self._router.share() != self._share:
                self._router.set_canary_share(self._share)
        return self._traffic.collect()

    def _check_canary(self, name: str, serving: str) -> None:
        """Raises `DecisionReached` if a canary replica is silent, or not as the test needs it."""
        status = self._fleet.status(name)
        if status is None:
            since = self._silent_since.setdefault(name, self._clock.monotonic())
            if self._clock.monotonic() - since >= SILENCE_S:
                raise rollback_decision(f"{name} does not answer")
            return
        self._silent_since.pop(name, None)
        if status.broken:
            raise self._fleet.broken_decision(name, status)
        if status.reverted == serving:
            raise self._fleet.reverted_decision(name, status)
        if self._fleet.served_by(status) != serving:
            raise rollback_decision(f"{name} was started again, or swapped by another controller")

    def _report(self, line: str) -> None:
        """Reports a line, at most once every ten seconds."""
        if self._clock.monotonic() - self._said_at >= 10:
            self._said_at = self._clock.monotonic()
            self._say(line)


def _pause(seconds: float) -> float:
    """Time to sleep after a look that took `seconds`: looking takes at most a sixth of the time."""
    return max(LOOK_S, 5 * seconds)
