"""The requests of a canary's test: collected from the replicas and the router's log.

    traffic = Traffic(replicas, router, roles, old="0c5e7d91aa02", new="4f1d0c2a9b77")
    traffic.begin(clock.time())
    stable, canary = traffic.collect()      # all so far

Requests that began before `begin` are left out, as are those that another release drafted a part
of. A replica that was started again counts from 0, and is read from there.
"""

from collections.abc import Mapping
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.eval.live.observations import Observation, observations
from outrider.recipes.live.parts import ReplicaClient, RouterClient
from outrider.serving.live.access_log import RoutedRequest
from outrider.serving.live.replica import LiveRequest

Role = Literal["stable", "canary"]


class Traffic:
    """Finished requests since the canary's first share."""

    def __init__(
        self,
        replicas: Mapping[str, ReplicaClient],
        router: RouterClient,
        roles: Mapping[str, Role],
        releases: Mapping[Role, str],
    ) -> None:
        """`releases`: name of the release of each role."""
        self._replicas, self._router = replicas, router
        self._roles, self._releases = roles, releases
        self._after: dict[str, int] = {}
        self._finished: list[LiveRequest] = []
        self._routed: list[RoutedRequest] = []
        self._offset, self._began = 0, 0.0

    def begin(self, now: float) -> None:
        """Leaves out everything that began before `now`, Unix time in seconds."""
        self._began = now
        self._read()
        self._finished.clear()
        self._routed.clear()

    def collect(self) -> tuple[list[Observation], list[Observation]]:
        """All observations so far: stable, canary."""
        self._read()
        stable, canary = observations(self._routed, self._finished)
        return stable, canary

    def _read(self) -> None:
        for name, replica in self._replicas.items():
            try:
                finished, after = replica.requests(self._after.get(name, 0))
            except OutriderError:  # the controller looks at its status
                continue
            if after < self._after.get(name, 0):  # started again
                finished, after = replica.requests(0)
            self._after[name] = after
            role = self._roles[name]
            self._finished += [each for each in finished if self._counts(each, role)]
        while True:
            routed, offset = self._router.requests(self._offset)
            self._routed += [each for each in routed if each.started_at >= self._began]
            if offset == self._offset:
                return
            self._offset = offset

    def _counts(self, request: LiveRequest, role: Role) -> bool:
        # None: the stable replicas may never have been exchanged since their start.
        drafted_by = {self._releases[role], None if role == "stable" else self._releases[role]}
        began = request.finished_at - request.e2e_s
        return began >= self._began and not request.mixed and request.version in drafted_by
