"""The replicas of an endpoint: which release each serves, and exchanging it.

    fleet = Fleet(endpoint.policy, parts)
    status = fleet.status("b")
    served_by(status, directories)                  # a release's name; None: something else
    fleet.exchange("b", status, release, watched=True)      # journalled first
    behind = fleet.bring(["a", "b"], release, directories)

A server that was started again serves what its command names. Its directory tells which release
that is (`known_directories`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.parts import Parts
from outrider.live.releases import Release, Releases, release_name
from outrider.live.state import State
from outrider.serving.admin.replica import (
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapRefused,
)

PATIENCE_S = 30.0
"""How long a replica that does not answer is tried again before it is left behind, in seconds."""

LOOK_S = 0.5
"""Time between two looks, in seconds."""


class Reverted(OutriderError):
    """A replica took an exchange back."""


class Stuck(OutriderError):
    """A replica cannot be brought to a release."""


Look = Callable[[float], bool]
"""Called before each look at a replica, with the seconds that its watch has been undecided for.
True goes on without the watch's verdict; it may raise, to stop."""


class Fleet:
    """All replicas of an endpoint."""

    def __init__(self, policy: CanaryPolicy, parts: Parts) -> None:
        self.replicas, self._policy = parts.replicas, policy
        self._journal, self._events, self._say = parts.journal, parts.events, parts.say
        self._watch_of, self._clock = parts.watch_of, parts.clock

    def status(self, name: str) -> ReplicaStatus | None:
        """None where the replica does not answer, or answers that its engine is gone."""
        try:
            return self.replicas[name].status()
        except OutriderError:
            return None

    def exchange(self, name: str, seen: ReplicaStatus, release: Release, watched: bool) -> None:
        """Exchanges one replica's speculator, journalled first.

        `SwapRefused` leaves the old one, and is raised too where the replica drafts with another
        one than in its status `seen`. After `SwapFailed` and `ReplicaUnreachable`, its status has
        which one serves.
        """
        watch = self._watch_of(release, self._policy) if watched else None
        self._journal.append("swap", replica=name, release=release.name)
        try:
            done = self.replicas[name].swap(
                release.directory,
                release.name,
                release.digest,
                "clear",
                watch,
                expected=seen.digest,
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
        self, names: Iterable[str], release: Release, directories: Mapping[str, str]
    ) -> list[str]:
        """Has the replicas serve `release`, one after another; returns those left behind.

        One that serves it already is left alone. One that does not answer, refuses, took this
        release back or is broken is left behind, and the others are exchanged all the same.
        """
        behind = []
        for name in names:
            try:
                answers = self._bring_one(name, release, directories)
            except (Stuck, SwapRefused, SwapFailed) as error:
                answers = False
                self._say(f"{error}; left behind")
            if not answers:
                behind.append(name)
        return behind

    def promote(
        self,
        names: Iterable[str],
        release: Release,
        directories: Mapping[str, str],
        tried: Collection[str],
        look: Look,
    ) -> list[str]:
        """As `bring`, and waits for the verdict of each replica's watch.

        Only replicas that do not answer are left behind. `Reverted` where a watch took the release
        back, also earlier on one of the replicas in `tried`; another `OutriderError` where a
        replica refuses it or is broken.
        """
        return [
            name
            for name in names
            if not self._bring_one(name, release, directories, True, name in tried, look)
        ]

    def _bring_one(
        self,
        name: str,
        release: Release,
        directories: Mapping[str, str],
        watched: bool = False,
        tried: bool = False,
        look: Look = lambda undecided_s: False,
    ) -> bool:
        """False where the replica does not answer."""
        failed: SwapFailed | None = None
        watch_began: float | None = None
        deadline = self._clock.time() + PATIENCE_S
        while True:
            now = self._clock.time()
            goes_on = look(0.0 if watch_began is None else now - watch_began)
            status = self.status(name)
            if status is not None and status.broken:
                raise Stuck(f"{name} drafts wrongly until it is started again: {status.broken}")
            if status is not None and served_by(status, directories) == release.name:
                if goes_on or not (watched and status.watching):
                    self._events.serving(name, release.name)
                    return True
                watch_began = now if watch_began is None else watch_began
                deadline = now + PATIENCE_S
            elif status is not None and status.reverted == release.name and (tried or not watched):
                raise self.reverted(name, status) if watched else Stuck(_taken_back(name, status))
            elif status is not None and failed is not None:
                raise failed
            elif now > deadline:
                self._say(f"{name}: no answer for {PATIENCE_S:.0f} s; left behind")
                return False
            elif status is not None:
                tried = True
                try:
                    self.exchange(name, status, release, watched)
                    deadline = self._clock.time() + PATIENCE_S
                    continue
                except SwapFailed as error:  # which one serves is in its status
                    failed = error
                except ReplicaUnreachable:
                    pass  # looked at again
            self._clock.sleep(LOOK_S)

    def reverted(self, name: str, status: ReplicaStatus) -> Reverted:
        """The error of a replica that took its exchange back; journalled."""
        self._events.swap_reverted(name)
        self._journal.append(
            "reverted", replica=name, release=status.reverted, reason=status.reverted_because
        )
        return Reverted(_taken_back(name, status))


def _taken_back(name: str, status: ReplicaStatus) -> str:
    return f"{name} took release {status.reverted} back: {status.reverted_because}"


def served_by(status: ReplicaStatus, directories: Mapping[str, str]) -> str | None:
    """Name of the release that a replica serves; None where it is none that is known.

    A broken replica serves none.
    """
    if status.broken:
        return None
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
