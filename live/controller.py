"""The controller of a live endpoint: deploys, rolls back, and survives being killed.

    with open_controller(load_endpoint("endpoints/resume.yaml")) as controller:
        controller.recover()                            # first, always
        deployment = controller.deploy(Path("runs/march/bundle"))
        deployment.outcome, deployment.verdict.reason

Every change is in the journal before it is made (state.py lists the entries). `recover` reads the
journal, reads the status of the replicas, and brings all of them to one release: the one that the
verdict names, or the old one if there is no verdict. If `recover` is interrupted, run it again.

States and deployments are immutable. A method that appends to the journal uses the state that
`append` returns, because an operator's request may have been appended by another process since.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.common.files import Locked, lock, lock_holder
from outrider.live.canary import CanaryTest, fair_share
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import Clock, DecisionReached, Fleet
from outrider.live.journal import Journal
from outrider.live.metrics import LiveMetrics
from outrider.live.releases import Release, Releases, first_release
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import Deployment, DeploymentVerdict, Mode, State, read_state
from outrider.serving.admin.replica import (
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapRefused,
)
from outrider.serving.bundle.bundle_places import local_bundle, pin_location
from outrider.serving.bundle.erase import holds_keys, holds_sessions
from outrider.speculators.lookup_history import session_key

KEPT_RELEASES = 5
"""Number of newest releases that are kept for rollbacks."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Erasure:
    """What was erased from an endpoint."""

    responses: int
    """Number of erased responses in all releases."""
    replaced: dict[str, str]
    """Deleted release -> the release without the sessions."""
    behind: tuple[str, ...]
    """Replicas that may still draft from what was erased: they did not answer or refused."""


class Controller:
    """Deploys to one endpoint; the caller holds its lock (`open_controller`)."""

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal[State],
        say: Say = lambda text: None,
        clock: Clock = time,
        on_verdict: Callable[[DeploymentVerdict], None] = lambda verdict: None,
    ) -> None:
        """`on_verdict` is called with each verdict of a canary test, including `wait`."""
        self.endpoint = endpoint
        self.journal = journal
        self.say = say
        self.releases = Releases(endpoint.releases)
        self.router = Router(endpoint)
        self.fleet = Fleet(endpoint=endpoint, journal=journal, say=say, clock=clock)
        self._on_verdict = on_verdict

    def recover(self) -> State:
        """Brings every responding replica to one release; must be called first."""
        state = self.journal.read()
        if state.open is None:
            self._bring_all_to(state.serving)
        else:
            deployment = state.open
            self.say(f"deployment {deployment.id} was not finished")
            if deployment.verdict.action == "wait":
                verdict = DeploymentVerdict("roll_back", "the controller ended before a verdict")
                deployment = self._decide(verdict)
            self._finish(deployment)
        return self.journal.read()

    def erase(self, sessions: Sequence[str]) -> Erasure:
        """Erases sessions from all releases and from the replicas that serve them.

        The releases that had them are deleted, so a rollback restores one without them. Later
        deployments leave the sessions out, too (`add_release`). Rerun it if it is interrupted.
        """
        holding = [
            release
            for release in self.releases.all()
            if holds_sessions(release.directory, sessions)
        ]
        replaced: dict[str, str] = {}
        responses = 0
        keys = {session_key(name) for name in sessions}
        for release in holding:
            without, count = self.releases.add_without(
                release.directory, keys, "without erased sessions"
            )
            replaced[release.name] = without.name
            responses += count
            self.say(f"release {release.name}: {count} responses erased")
        # The digests are in the journal so that no later bundle brings the sessions back.
        digests = sorted(key.hex() for key in keys)
        state = self.journal.append("erased", replaced=replaced, sessions=digests)
        # Unwatched: the drafts of what is erased must not come back.
        behind = self._bring_all_to(state.serving)
        for release in holding:
            self.releases.delete(release.name)
        self.releases.clear()
        return Erasure(responses=responses, replaced=replaced, behind=tuple(behind))

    def _bring_all_to(self, serving: str | None) -> list[str]:
        """Makes all replicas serve the release in use; returns those left behind.

        None: leaves them as they are.
        """
        behind: list[str] = []
        served = {self.fleet.served_by(self.fleet.status(name)) for name in self.fleet.replicas}
        if serving and served != {serving}:
            behind = self.fleet.bring_to_release(
                self.fleet.replicas, self.releases.verified(serving)
            )
        self._settle_share(behind)
        return behind

    def deploy(self, bundle: Path, in_place: bool = False, source: str | None = None) -> Deployment:
        """Adds a bundle, tests it on the canary, and promotes it or rolls back.

        With `in_place`, or without canary replicas, the replicas are swapped one after another and
        only their watches decide. Raises an `OutriderError` if the deployment cannot begin.
        """
        serving = self.adopt_release()
        self.releases.verified(serving)  # a rollback needs it
        new = self.add_release(bundle, source)
        if new.name == serving:
            raise OutriderError(f"{bundle}: release {new.name} is in use already")
        # Before the first swap, so that a bundle that does not fit changes nothing.
        for name in self.fleet.replicas:
            self._check_fits(new, name, bundle)
        if in_place or not self.endpoint.canary:
            verdict = DeploymentVerdict("promote", "in place, no canary")
            return self._run(new.name, serving, "in_place", verdict)
        return self._run(new.name, serving, "canary", None)

    def add_release(self, bundle: Path, source: str | None = None) -> Release:
        """Adds a bundle as a release, without the sessions that were erased from the endpoint.

        A round of `outrider adapt` may have extended a history that still had them.
        """
        erased = self.journal.read().erased
        if not holds_keys(bundle, erased):
            return self.releases.add(bundle, source)
        release, count = self.releases.add_without(bundle, erased, source)
        self.say(f"{bundle}: {count} responses left out, because their sessions were erased")
        return release

    def _check_fits(self, new: Release, name: str, bundle: Path) -> None:
        """Raises an `OutriderError` unless a replica can be swapped to this release."""
        status = self._sound(name)
        for what, served, released in (("kind", status.kind, new.kind), ("K", status.k, new.k)):
            if served != released:
                raise OutriderError(
                    f"{bundle}: {what} is {released}, but {name} was started for {served}: a"
                    " live server cannot change that; start servers with this bundle's"
                    " serve.sh and shift the traffic (`outrider deploy --manifest`)"
                )

    def roll_back(self) -> Deployment:
        """Rolls all replicas back to the previous release."""
        state = self.journal.read()
        if state.serving is None or state.previous is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no release before the one in use"
                f" ({state.serving or 'none was deployed'}); nothing was changed"
            )
        self.releases.verified(state.previous)
        verdict = DeploymentVerdict("promote", "by request", "operator")
        return self._run(state.previous, state.serving, "rollback", verdict)

    def promote(self) -> Deployment:
        """Promotes and finishes a deployment whose controller has stopped."""
        if self.journal.read().open is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no deployment is in progress, so there is nothing"
                " to promote"
            )
        return self._finish(self._decide(DeploymentVerdict("promote", "by request", "operator")))

    def adopt_release(self) -> str:
        """Returns the release in use; if none, adopts the replicas' speculator."""
        state = self.journal.read()
        if state.serving is None:
            status_of = {name: self._sound(name) for name in self.fleet.replicas}
            statuses = list(status_of.values())
            directories = sorted({os.path.realpath(status.directory) for status in statuses})
            if len(directories) != 1:
                raise OutriderError(
                    f"the replicas serve different speculators ({', '.join(directories)}); start"
                    " them with the same bundle"
                )
            (directory,) = directories
            release = first_release(self.releases, Path(directory), statuses[0].k)
            for name, status in status_of.items():
                if status.digest not in ("", release.digest):
                    raise OutriderError(
                        f"{directory}: changed since {name} was started with it; start the"
                        " replicas again, or restore the bundle that they were started with"
                    )
            state = self.journal.append("adopt", release=release.name, directory=directory)
            # Replicas with an older Outrider do not report the digest of their start.
            self._bring_all_to(release.name)
        assert state.serving is not None
        return state.serving

    def _sound(self, name: str) -> ReplicaStatus:
        """A replica's status; raises an `OutriderError` if the replica is broken."""
        status = self.fleet.replicas[name].status()
        if status.broken:
            raise self.fleet.broken_decision(name, status)
        return status

    def _run(self, new: str, old: str, mode: Mode, verdict: DeploymentVerdict | None) -> Deployment:
        """Runs a whole deployment; if `verdict` is None, the canary decides."""
        self.journal.append("begin", new=new, old=old, mode=mode)
        self.say(f"deployment of release {new}, in place of {old} ({mode})")
        try:
            if verdict is None:
                verdict = self._canary(self.releases.get(new), self.releases.get(old))
            return self._finish(self._decide(verdict))
        except BaseException:  # Ctrl-C, a full disk: the canary gets no requests until `recover`
            with contextlib.suppress(RouterUnavailable):
                self.router.set_canary_share(0)
            raise

    def _canary(self, new: Release, old: Release) -> DeploymentVerdict:
        """Tests the new release on the canary replicas."""
        self._share(fair_share(self.endpoint))
        test = CanaryTest(
            fleet=self.fleet, router=self.router, new=new, old=old, on_verdict=self._on_verdict
        )
        try:
            test.measure_baseline()
            self._share(0)
            test.swap(new, watched=True)
            return test.run()
        except DecisionReached as error:
            return error.verdict
        except (SwapRefused, SwapFailed, ReplicaUnreachable) as error:
            return DeploymentVerdict("roll_back", str(error))

    def _finish(self, deployment: Deployment) -> Deployment:
        """Carries out the verdict: all replicas get its release, the canary first."""
        names = [replica.name for replica in [*self.endpoint.canary, *self.endpoint.stable]]
        behind: list[str] | None = None
        if deployment.verdict.action == "promote" and deployment.mode != "rollback":
            self._share(fair_share(self.endpoint))  # the watches need requests
            try:
                release = self.releases.verified(deployment.new)
                behind = self.fleet.promote(names, release, set(deployment.swapped))
            except DecisionReached as error:
                deployment = self._decide(error.verdict)
            except OutriderError as error:  # refused, or the release is gone
                deployment = self._decide(DeploymentVerdict("roll_back", str(error)))
        if behind is None:
            # Unwatched: this release served before, and there is no other one to go back to.
            self._share(0)
            behind = self.fleet.bring_to_release(names, self.releases.verified(deployment.goal))
        self._settle_share(behind)
        outcome = "promoted" if deployment.verdict.action == "promote" else "rolled_back"
        state = self.journal.append("end", outcome=outcome, serving=deployment.goal, behind=behind)
        self.releases.prune(KEPT_RELEASES, state.in_use)
        self.say(f"{outcome}: {deployment.verdict.reason}; in use: {state.serving}")
        assert state.last is not None
        return state.last

    def _decide(self, verdict: DeploymentVerdict) -> Deployment:
        """Records a verdict; returns the open deployment with it."""
        state = self.journal.append("verdict", **vars(verdict))
        self.say(f"verdict: {verdict.action}, by the {verdict.by}: {verdict.reason}")
        assert state.open is not None
        return state.open

    def _settle_share(self, behind: Collection[str]) -> None:
        """Sets the canary's share while no deployment runs; 0 if a canary was left behind."""
        is_behind = any(replica.name in behind for replica in self.endpoint.canary)
        self._share(0 if is_behind else fair_share(self.endpoint))

    def _share(self, percent: float) -> None:
        """Sets the canary's share; if the router is down, only reports that."""
        if not self.endpoint.canary:
            return
        try:
            if self.router.share() == percent == self.journal.read().share:
                return
            # First: after a kill between the two, `recover` sees a share that differs and sets it.
            self.journal.append("share", percent=percent)
            self.router.set_canary_share(percent)
        except RouterUnavailable as error:
            self.say(str(error))


@contextlib.contextmanager
def open_controller(endpoint: Endpoint, say: Say = lambda text: None) -> Iterator[Controller]:
    """Yields an endpoint's controller, with its lock held and its journal open.

    Raises `Locked` if another process is deploying to the endpoint.
    """
    metrics = LiveMetrics(endpoint)
    with (
        lock(
            endpoint.lock,
            "is deploying to this endpoint; wait for it, or end its deployment with --rollback or"
            " --promote",
        ),
        Journal(endpoint.journal, State(), listener=metrics.publish) as journal,
    ):
        yield Controller(
            endpoint, journal, say, on_verdict=lambda verdict: metrics.publish(verdict=verdict)
        )


def deploy_bundle(
    bundle: str | Path, endpoint: Endpoint, in_place: bool = False, say: Say = lambda text: None
) -> Deployment:
    """Tests a bundle on the canary, then promotes it or rolls back.

    `bundle` is a folder, or an address that `outrider export --to` wrote to. Blocks until the
    deployment ends; an interrupted one is finished first. Raises an `OutriderError` if the
    deployment could not begin (bad bundle, no answer from a replica), or could not be finished
    (full disk), in which case `--recover` is needed.
    """
    source = pin_location(bundle)
    with open_controller(endpoint, say) as controller, local_bundle(source) as directory:
        controller.recover()
        return controller.deploy(directory, in_place, source)


def erase_from_endpoint(
    endpoint: Endpoint, sessions: Sequence[str], say: Say = lambda text: None
) -> Erasure:
    """Erases sessions from an endpoint's releases and live replicas.

    An interrupted deployment is finished first. Raises `Locked` while another process deploys.
    """
    with open_controller(endpoint, say) as controller:
        controller.recover()
        return controller.erase(sessions)


def end_deployment(
    endpoint: Endpoint, action: Literal["promote", "roll_back"], say: Say = lambda text: None
) -> Deployment:
    """Ends the open deployment, or rolls back the last one.

    The open deployment is promoted or rolled back, as `action` says. If another process is
    deploying, adds a request to the journal and waits until that process is done.
    """
    try:
        with open_controller(endpoint, say) as controller:
            if action == "promote":
                return controller.promote()
            interrupted = controller.journal.read().open
            last = controller.recover().last
            # `recover` may have rolled it back already: then there is nothing left to undo.
            if interrupted and last and last.id == interrupted.id and last.went_back:
                return last
            return controller.roll_back()
    except Locked:
        opened = read_state(endpoint).open
        if opened is None:
            raise
    return _end_by_request(endpoint, opened, action, say)


def _end_by_request(
    endpoint: Endpoint, opened: Deployment, action: Literal["promote", "roll_back"], say: Say
) -> Deployment:
    """Asks the process that is deploying to end its deployment; waits until it has."""
    with Journal(endpoint.journal, State()) as journal:
        journal.append("request", deployment=opened.id, action=action, by="operator")
        say(f"asked the deploying process to {action.replace('_', ' ')} {opened.new}")
        while True:
            # Before reading: a process that is gone may have ended the deployment as its last act.
            is_deploying = lock_holder(endpoint.lock) is not None
            last = journal.read().last
            if last is not None and last.id == opened.id:
                return last
            if not is_deploying:
                raise OutriderError(
                    f"{endpoint.lock}: its process ended before the deployment did; run the"
                    " command again"
                )
            time.sleep(0.5)
