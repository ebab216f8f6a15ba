"""An endpoint's replicas: reads and swaps the release that each serves.

    fleet = Fleet(endpoint, journal, releases)
    status = fleet.status("b")
    fleet.served_by(status)                         # a release's name; None: something else
    fleet.swap("b", status, release, watched=True)  # adds to the journal first
    behind = fleet.bring_to_release(["a", "b"], release)

A replica serves what its digest names, also after a restart; a bundle that was changed under a
known path is unknown. Only a directory that is no bundle, such as the target's own drafter, is
identified by its path.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Journal
from outrider.live.releases import Release, release_name, watch_of
from outrider.live.state import DeploymentVerdict, State
from outrider.serving.admin.replica import (
    Replica,
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapOrder,
    SwapRefused,
)
from outrider.serving.bundle.bundle_digest import MANIFEST

PATIENCE_S = 30.0
"""Seconds for which an unresponsive replica is retried before it is left behind."""

LOOK_S = 0.5
"""Seconds between two polls of the replicas."""


class Clock(Protocol):
    """`time()`, `monotonic()` and `sleep(seconds)`, as in the module `time`."""

    def time(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that no change of the system's clock affects, for time limits."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Waits."""
        ...


class DecisionReached(OutriderError):
    """Interrupts a deployment with a verdict from a watch, operator or controller."""

    def __init__(self, verdict: DeploymentVerdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def rollback_decision(reason: str, by: str = "controller") -> DecisionReached:
    """A verdict that ends a deployment by restoring its old release."""
    return DecisionReached(DeploymentVerdict("roll_back", reason, by))


class Fleet:
    """All replicas of an endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal[State],
        say: Callable[[str], None] = lambda text: None,
        clock: Clock = time,
    ) -> None:
        self.replicas = replicas_of(endpoint)
        self.endpoint = endpoint
        self.journal = journal
        self.say = say
        self.clock = clock

    def status(self, name: str) -> ReplicaStatus | None:
        """Status of a replica; None if it or its engine is unavailable."""
        try:
            return self.replicas[name].status()
        except OutriderError:
            return None

    def served_by(self, status: ReplicaStatus | None) -> str | None:
        """Name of the release that a replica serves; None if unknown."""
        return served_by(status, self.journal.read())

    def swap(self, name: str, seen: ReplicaStatus, release: Release, watched: bool) -> None:
        """Swaps one replica's speculator, after adding the swap to the journal.

        `SwapRefused` leaves the old speculator in use; it is also raised if that speculator is not
        the one in `seen`. After `SwapFailed` or `ReplicaUnreachable`, `status` names the speculator
        in use.
        """
        self.journal.append("swap", replica=name, release=release.name)
        order = SwapOrder(
            directory=str(release.directory),
            version=release.name,
            digest=release.digest,
            watch=watch_of(release, self.endpoint.policy) if watched else None,
            expected=seen.digest,
        )
        done = self.replicas[name].swap(order)
        self.journal.append("swapped", replica=name, release=release.name, **vars(done))
        self.say(
            f"{name}: release {release.name}, read in {done.read_s:.2f} s,"
            f" requests waited {1000 * done.stall_s:.0f} ms"
        )
        if done.differing:
            self.say(
                f"{name}: its server was started with other values of {', '.join(done.differing)}"
                f" than those in {release.directory / MANIFEST}; to serve as measured, start it"
                " with the bundle's serve.sh"
            )

    def bring_to_release(self, names: Iterable[str], release: Release) -> list[str]:
        """Makes the replicas serve `release`, one after another; returns those left behind.

        A replica that already serves it is not swapped. A replica that does not answer, refuses the
        swap, reverts this release or is broken is left behind, and the others are swapped anyway.
        """
        behind = []
        for name in names:
            try:
                if not self._bring_one(name, release, tried=True, watched=False):
                    behind.append(name)
            except (DecisionReached, SwapRefused, SwapFailed) as error:
                self.say(f"{error}; left behind")
                behind.append(name)
        return behind

    def promote(self, names: Sequence[str], release: Release, tried: Collection[str]) -> list[str]:
        """Like `bring_to_release`, but waits for the verdict of each replica's watch.

        One replica that does not answer is left behind, unless it is the first. Raises
        `DecisionReached` if the first or a second one does not answer, an operator requests a
        rollback, a replica is broken, or a watch has reverted the release (possibly before this
        call, for replicas in `tried`) or is still undecided after `policy.max_seconds`. Also raises
        `SwapRefused` and `SwapFailed`.
        """
        behind: list[str] = []
        for name in names:
            if not self._bring_one(name, release, name in tried, True):
                if behind or name == names[0]:  # the release may kill the servers that load it
                    raise rollback_decision(f"{name} does not answer since its swap")
                behind.append(name)
        return behind

    def _bring_one(self, name: str, release: Release, tried: bool, watched: bool) -> bool:
        """Makes a replica serve `release`; returns False if it does not answer."""
        failed: SwapFailed | ReplicaUnreachable | None = None
        watch_ends: float | None = None
        deadline = self.clock.monotonic() + PATIENCE_S
        while True:
            if watched:
                self._check_request()
            now = self.clock.monotonic()
            status = self._unbroken_status(name)
            if status is None:
                if now > deadline:
                    self.say(f"{name}: no answer for {PATIENCE_S:.0f} s; left behind")
                    return False
            elif self.served_by(status) == release.name:
                if not (watched and status.watching):
                    return True
                watch_ends = watch_ends or now + self.endpoint.policy.max_seconds
                _check_watch(name, now, watch_ends)
                deadline = now + PATIENCE_S
            elif status.reverted == release.name and tried:
                raise self.reverted_decision(name, status)
            elif isinstance(failed, SwapFailed):  # and the status shows that it is not in use
                raise failed
            else:
                # Also after ReplicaUnreachable: a server that was killed in its swap comes back
                # with the speculator of its start.
                tried = True
                failed = self._try_swap(name, status, release, watched)
                if failed is None:
                    deadline = self.clock.monotonic() + PATIENCE_S
                    continue
            self.clock.sleep(LOOK_S)

    def _try_swap(
        self, name: str, status: ReplicaStatus, release: Release, watched: bool
    ) -> SwapFailed | ReplicaUnreachable | None:
        """Swaps a replica; returns errors after which its status shows what is in use."""
        try:
            self.swap(name, status, release, watched)
        except (SwapFailed, ReplicaUnreachable) as error:
            return error
        return None

    def _unbroken_status(self, name: str) -> ReplicaStatus | None:
        """Status of a replica; raises `DecisionReached` if it is broken until a restart."""
        status = self.status(name)
        if status is not None and status.broken:
            raise self.broken_decision(name, status)
        return status

    def _check_request(self) -> None:
        """Raises `DecisionReached` if an operator has requested a rollback."""
        deployment = self.journal.read().open
        request = deployment.request if deployment is not None else None
        if request is not None and request.action == "roll_back":
            raise DecisionReached(request)

    def broken_decision(self, name: str, status: ReplicaStatus) -> DecisionReached:
        """The verdict on a replica whose speculator stays broken until a restart."""
        return rollback_decision(
            f"{name} drafts wrongly until it is started again: {status.broken}"
        )

    def reverted_decision(self, name: str, status: ReplicaStatus) -> DecisionReached:
        """Records that a replica reverted its swap, and returns the verdict."""
        because = status.reverted_because
        self.journal.append("reverted", replica=name, release=status.reverted, reason=because)
        return rollback_decision(f"{name} took release {status.reverted} back: {because}", "watch")


def _check_watch(name: str, now: float, watch_ends: float) -> None:
    """Raises `DecisionReached` if a replica's watch has had its time."""
    if now > watch_ends:
        raise rollback_decision(f"{name}: its watch is undecided after policy.max_seconds")


def replicas_of(endpoint: Endpoint) -> dict[str, Replica]:
    """A client for each replica, by name."""
    token = endpoint.admin_token()
    return {replica.name: Replica(replica.admin, token) for replica in endpoint.replicas}


def served_by(status: ReplicaStatus | None, state: State) -> str | None:
    """Name of the release that a replica serves; None if unknown.

    Also None for a broken replica.
    """
    if status is None or status.broken:
        return None
    if status.digest:
        return release_name(status.digest)
    directory = os.path.realpath(status.directory)
    if (Path(directory) / MANIFEST).is_file():
        # Damaged, or the server has an older Outrider, whose digest is empty before the first swap.
        return None
    return state.started_with.get(directory)
