"""The replicas of an endpoint: which release each serves, and exchanging it.

    fleet = Fleet(replicas, releases, journal, policy, watch_of, clock, events, say)
    fleet.serves("b", directories)                 # a release's name; None: something else
    fleet.exchange("b", release, watched=True)      # journalled first
    behind = fleet.bring(["a", "b"], release, directories)

A server that was started again serves what its command names. Its directory tells which release
that is (`known_directories`).
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.recipes.live.parts import Clock, Events, ReplicaClient, WatchOf
from outrider.recipes.live.state import State
from outrider.serving.live.endpoint_file import CanaryPolicy
from outrider.serving.live.journal import Journal
from outrider.serving.live.releases import Release, Releases, release_name
from outrider.serving.live.replica import ReplicaStatus, ReplicaUnreachable, SwapRefused

PATIENCE_S = 30.0
"""How long a replica that does not answer is tried again before it is left behind, in seconds."""

WATCH_WAIT_S = 60.0
"""How long a promotion waits for a replica's watch before it goes on to the next one, in seconds.
The watch itself goes on."""

LOOK_S = 0.5
"""Time between two looks, in seconds."""


class Reverted(OutriderError):
    """A replica took an exchange back."""


class Fleet:
    """All replicas of an endpoint."""

    def __init__(
        self,
        replicas: Mapping[str, ReplicaClient],
        releases: Releases,
        journal: Journal,
        policy: CanaryPolicy,
        watch_of: WatchOf,
        clock: Clock,
        events: Events,
        say: Callable[[str], None],
    ) -> None:
        self.replicas = replicas
        self._releases, self._journal, self._policy = releases, journal, policy
        self._watch_of, self._clock, self._events, self._say = watch_of, clock, events, say

    def status(self, name: str) -> ReplicaStatus | None:
        """None where the replica does not answer, or answers that its engine is gone."""
        try:
            return self.replicas[name].status()
        except OutriderError:
            return None

    def statuses(self) -> dict[str, ReplicaStatus | None]:
        """The status of each replica."""
        return {name: self.status(name) for name in self.replicas}

    def exchange(self, name: str, release: Release, watched: bool) -> None:
        """Exchanges one replica's speculator, journalled first.

        `SwapRefused` leaves the old one. `ReplicaUnreachable` where it does not answer.
        """
        watch = self._watch_of(release, self._policy) if watched else None
        self._journal.append("swap", replica=name, release=release.name)
        try:
            done = self.replicas[name].swap(
                release.directory, release.name, release.digest, self._policy.cache, watch
            )
        except SwapRefused:
            self._events.swap_refused(name)
            raise
        self._events.swapped(name, done.read_s, done.apply_s, done.stall_s)
        self._events.serving(name, release.name)
        self._say(
            f"{name}: release {release.name}, read in {done.read_s:.2f} s,"
            f" requests waited {1000 * done.stall_s:.0f} ms"
        )

    def bring(
        self,
        names: Iterable[str],
        release: Release,
        directories: Mapping[str, str],
        watched: bool = False,
        tried: Collection[str] = (),
        before_each: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Has the replicas serve `release`, one after another; returns those that do not answer.

        One that serves it already is left alone. `Reverted` where a watched exchange was taken
        back, also an earlier one of the replicas in `tried`. `before_each` may raise, to stop.
        """
        behind = []
        for name in names:
            is_new = name not in tried
            if not self._bring_one(name, release, directories, watched, is_new, before_each):
                behind.append(name)
                self._say(
                    f"{name}: no answer for {PATIENCE_S:.0f} s; left behind, until it answers and"
                    " `deploy-speculator --recover` is run"
                )
        return behind

    def _bring_one(
        self,
        name: str,
        release: Release,
        directories: Mapping[str, str],
        watched: bool,
        is_new: bool,
        before_each: Callable[[], None],
    ) -> bool:
        deadline = self._clock.time() + PATIENCE_S
        while True:
            before_each()
            status = self.status(name)
            if status is not None:
                if served_by(status, directories) == release.name:
                    self._events.serving(name, release.name)
                    return True
                if watched and not is_new and status.reverted == release.name:
                    raise self.reverted(name, status)
                with contextlib.suppress(ReplicaUnreachable):  # looked at again
                    self.exchange(name, release, watched)
                    if watched:
                        self._wait_for_watch(name, before_each)
                    return True
            if self._clock.time() > deadline:
                return False
            self._clock.sleep(LOOK_S)

    def _wait_for_watch(self, name: str, before_each: Callable[[], None]) -> None:
        deadline = self._clock.time() + WATCH_WAIT_S
        while (status := self.replicas[name].status()).watching:
            if self._clock.time() > deadline:
                return
            before_each()
            self._clock.sleep(LOOK_S)
        if status.reverted is not None:
            raise self.reverted(name, status)

    def reverted(self, name: str, status: ReplicaStatus) -> Reverted:
        """The error of a replica that took its exchange back."""
        self._events.swap_reverted(name)
        return Reverted(f"{name} took release {status.reverted} back: {status.reverted_because}")


def served_by(status: ReplicaStatus, directories: Mapping[str, str]) -> str | None:
    """Name of the release that a replica serves; None where it is none that is known."""
    if status.digest:
        return release_name(status.digest)
    return directories.get(str(Path(status.directory).resolve()))


def known_directories(state: State, releases: Releases) -> dict[str, str]:
    """Directories and the releases in them: of servers that were started with one."""
    kept = {str(each.directory.resolve()): each.name for each in releases.all()}
    return state.started_with | kept


def one_directory(statuses: Collection[ReplicaStatus]) -> Path:
    """Where replicas that were never exchanged have their speculator from.

    An `OutriderError` where that differs: the endpoint would not be all one release.
    """
    directories = sorted({str(Path(status.directory).resolve()) for status in statuses})
    if len(directories) != 1:
        raise OutriderError(
            f"the replicas serve different speculators ({', '.join(directories)}); start them with"
            " the same bundle"
        )
    return Path(directories[0])
