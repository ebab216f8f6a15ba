"""The canary's test: shares of the traffic, step by step, until there is a verdict.

    test = CanaryTest(fleet, router, new, old)
    verdict = test.measure_baseline()    # before the swap; None: continue
    verdict = test.run()                 # promote or roll back, why, and by whom

Replicas differ in speed, and the router keeps a user at one of them. So the canary's replicas are
compared with the others first, all with the old release and at the fair share: with the requests
that they have kept, and with new ones where those are too few.

A step ends after `min_requests` requests of the canary and `min_seconds`. A canary never gets more
than its fair share, that of a replica like the others: above it, it would be slower for its load.
In the last step, stable and canary replicas have the same load, so their speeds are compared, and
the canary can be promoted. It can be rolled back in any step, by the judge, by the replica's own
watch, by a person, or because it does not answer or ends no request.
"""

import contextlib
from collections.abc import Callable

from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import LOOK_S, Fleet
from outrider.live.judge import Arms, Verdict, decide
from outrider.live.router import Router, RouterUnavailable
from outrider.live.traffic import Traffic

SILENCE_S = 5.0
"""How long a canary may give no answer before it is rolled back, in seconds."""

STALL_S = 600.0
"""A canary that has requests and ends none of them for this long is rolled back, in seconds."""

_SAY_S = 10.0
"""Time between two reports of the figures, in seconds."""


def fair_share(endpoint: Endpoint) -> float:
    """Percent of the requests with which canary and stable replicas have the same load."""
    return round(100 * len(endpoint.canary) / len(endpoint.replicas), 2)  # as fine as Envoy has it


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
        self._endpoint, self._policy = fleet.endpoint, fleet.endpoint.policy
        self._journal, self._say, self._clock = fleet.journal, fleet.say, fleet.clock
        self._on_verdict = on_verdict
        self._traffic = Traffic(self._endpoint, fleet, old, self._journal.read().steady_since)
        self._baseline: Arms = [], []
        self._silent_since: dict[str, float] = {}
        self._canary_requests = 0
        self._alive_at = self._clock.time()  # when the canary last had no requests, or ended one
        self._said_at = 0.0
        self._share = fair_share(self._endpoint)

    def measure_baseline(self) -> Verdict | None:
        """Waits for `baseline_requests`, at the fair share; a verdict where something intervenes.

        The canary's replicas still serve the old release.
        """
        ends = self._clock.time() + self._policy.max_seconds
        while True:
            looked = self._clock.time()
            if (trouble := self._trouble(self._old)) is not None:
                return trouble
            self._baseline = self._traffic.collect()
            count, wanted = len(self._baseline[1]), self._policy.baseline_requests
            now = self._clock.time()
            if (stalled := self._stalled(count)) is not None:
                return stalled
            if count >= wanted or now > ends:
                self._say(f"baseline: {count} of {wanted} requests of the canary's replicas")
                return None
            self._report(f"baseline: {count} of {wanted} requests, with release {self._old}")
            self._clock.sleep(max(LOOK_S, 5 * (now - looked)))

    def run(self) -> Verdict:
        """Goes through the steps; the canary's replicas have been swapped."""
        self._traffic.start_test(self._new, self._clock.time())
        self._canary_requests = 0
        fair = fair_share(self._endpoint)
        for share in (share for share in self._policy.shares if share < fair):
            if (verdict := self._step(share, is_last=False)) is not None:
                return verdict
        verdict = self._step(fair, is_last=True)
        assert verdict is not None
        return verdict

    def _step(self, share: float, is_last: bool) -> Verdict | None:
        """The verdict of a step; None when the next one may begin."""
        self._share = share
        self._journal.append("share", percent=share)
        self._keep_share()
        self._say(f"canary: {share:g} % of the requests")
        began, before = self._clock.time(), self._canary_requests
        pause = LOOK_S
        while True:
            self._clock.sleep(pause)
            looked = self._clock.time()
            if (trouble := self._trouble(self._new)) is not None:
                return trouble
            stable, canary = self._traffic.collect()
            if (stalled := self._stalled(len(canary))) is not None:
                return stalled
            verdict = decide(
                (stable, canary), self._baseline, self._policy, began if is_last else None
            )
            self._on_verdict(verdict)
            self._report(f"canary: {len(canary)} requests, stable {len(stable)}; {verdict.reason}")
            if verdict.action == "roll_back":
                return verdict
            now = self._clock.time()
            pause = max(LOOK_S, 5 * (now - looked))  # many requests: fewer looks
            enough = self._canary_requests - before >= self._policy.min_requests
            if enough and now - began >= self._policy.min_seconds:
                if not is_last:
                    return None
                if verdict.action == "promote":
                    return verdict
            if now - began > self._policy.max_seconds:
                reason = (
                    f"undecided after {self._policy.max_seconds:.0f} s and"
                    f" {self._canary_requests} requests at {share:g} %: {verdict.reason}"
                )
                return Verdict("roll_back", reason, "controller", verdict.figures)

    def _trouble(self, serving: str) -> Verdict | None:
        """A verdict without figures: a person's, the watch's, or of something that broke.

        `serving`: the release that the canary's replicas have to serve.
        """
        deployment = self._journal.read().open
        if deployment is not None and deployment.request is not None:
            action, by = deployment.request
            return Verdict(action, "by request", by)
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
            if status.reverted == serving:
                return Verdict("roll_back", str(self._fleet.reverted(name, status)), "watch")
            if self._fleet.served_by(status) != serving:
                reason = f"{name} was started again, or swapped by another controller"
                return Verdict("roll_back", reason, "controller")
        self._keep_share()
        return None

    def _report(self, line: str) -> None:
        if self._clock.time() - self._said_at >= _SAY_S:
            self._said_at = self._clock.time()
            self._say(line)

    def _stalled(self, ended: int) -> Verdict | None:
        """A verdict if the canary has requests and has ended none for too long.

        `ended`: requests of the canary so far. A replica whose engine hangs still reports its
        status.
        """
        try:
            idle = not self._router.active("canary")
        except RouterUnavailable:
            idle = True
        if idle or ended > self._canary_requests:
            self._alive_at = self._clock.time()
        self._canary_requests = ended
        if self._clock.time() - self._alive_at <= STALL_S:
            return None
        reason = f"the canary has requests and ended none of them in {STALL_S:g} s"
        return Verdict("roll_back", reason, "controller")

    def _keep_share(self) -> None:
        """Sets the share if it differs: after a restart, Envoy has the initial one."""
        with contextlib.suppress(RouterUnavailable):  # it is set once the router answers
            if self._router.share() != self._share:
                self._router.set_canary_share(self._share)
