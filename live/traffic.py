"""The requests of a canary's test: collected from the replicas and the router's log.

    traffic = Traffic(replicas, router, roles, {"stable": old, "canary": new}, directories)
    traffic.begin(clock.time())
    stable, canary = traffic.collect()      # all so far

Requests that began before `begin` are left out, as are those that another release drafted a part
of. A replica that still has the speculator that it was started with reports no release: its
requests count while that is the role's. One that was started again counts from 0, and is read from
there.
"""

from collections.abc import Mapping
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.live.access_log import RoutedRequest
from outrider.live.fleet import served_by
from outrider.live.observations import Observation, observations
from outrider.live.router import Router
from outrider.serving.admin.replica import LiveRequest, Replica

Role = Literal["stable", "canary"]


class Traffic:
    """Finished requests since the canary's first share."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        router: Router,
        roles: Mapping[str, Role],
        releases: Mapping[Role, str],
        directories: Mapping[str, str],
    ) -> None:
        """`releases`: name of the release of each role. `directories`: those that are known."""
        self._replicas, self._router = replicas, router
        self._roles, self._releases, self._directories = roles, releases, directories
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
                if after < self._after.get(name, 0):  # started again
                    finished, after = replica.requests(0)
                status = replica.status()
            except OutriderError:  # the controller looks at its status
                continue
            self._after[name] = after
            # Requests without a release had the speculator that the server was started with.
            started_with = served_by(status, self._directories) if status.version is None else None
            wanted = self._releases[self._roles[name]]
            self._finished += [
                each
                for each in finished
                if each.finished_at - each.e2e_s >= self._began
                and not each.mixed
                and (each.version or started_with) == wanted
            ]
        while True:
            routed, offset = self._router.requests(self._offset)
            self._routed += [each for each in routed if each.started_at >= self._began]
            if offset == self._offset:
                return
            self._offset = offset
