"""The controller of a live endpoint: deploys a release, takes it back, survives being killed.

    with controlled(load_endpoint("endpoints/resume.yaml")) as controller:
        controller.recover()                            # first, always
        deployment = controller.deploy(Path("runs/march/bundle"))
        deployment.outcome, deployment.reason

Every change is in the journal before it is made (state.py lists the entries). `recover` reads the
journal, asks the replicas what they serve, and brings all of them to one release: without a verdict
the old one, after a verdict the one that it names. A release that a replica took back since is
replaced by the one before it. `recover` may itself be interrupted and started again.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.live.canary import CanaryTest, fair_share
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import Fleet, Undone
from outrider.live.journal import Journal, Locked, holder, lock, read_journal
from outrider.live.judge import Verdict
from outrider.live.releases import Release, Releases, adopt
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import Action, Deployment, Mode, State, fold
from outrider.serving.admin.replica import (
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapRefused,
)
from outrider.serving.bundle.bundle_places import local_bundle, pinned

if TYPE_CHECKING:
    from outrider.live.metrics import LiveMetrics

KEPT_RELEASES = 5
"""Newest releases that are kept for a rollback."""

_FOLLOW_S = 0.5

Say = Callable[[str], None]


class BundleRefused(OutriderError):
    """A bundle that cannot be deployed to this endpoint; nothing was begun."""


class Controller:
    """Deploys to one endpoint; the caller holds its lock (`controlled`)."""

    def __init__(
        self, endpoint: Endpoint, journal: Journal, say: Say = lambda text: None, clock: Any = time
    ) -> None:
        """`clock` has `time()` and `sleep(seconds)`, as the module has."""
        self.endpoint, self.journal, self.say, self.clock = endpoint, journal, say, clock
        self.releases = Releases(endpoint.releases, clock.time)
        self.router = Router(endpoint)
        self.fleet = Fleet(endpoint, journal, self.releases, say, clock)
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None
        """Gets each verdict of a canary's test, also those to wait."""

    @property
    def state(self) -> State:
        """What the journal says."""
        return self.journal.read()

    def recover(self) -> State:
        """Brings every replica that answers to one release; the first thing after a start."""
        state = self.state
        if state.open is not None:
            self.journal.append("recover")
            self.say(f"deployment {state.open.id} was not finished")
            if state.open.verdict is None:
                reason = "the controller ended before there was a verdict"
                self._decided(Verdict("roll_back", reason, "controller"))
            self._finish()
        elif state.serving and state.previous and (why := self._taken_back(state.serving)):
            verdict = Verdict("promote", why, "watch")
            self._run(state.previous, state.serving, "rollback", verdict)
        else:
            behind: list[str] = []
            names = [each.name for each in self.endpoint.replicas]
            if state.serving and any(self._serves(name) != state.serving for name in names):
                behind = self.fleet.bring(names, self.releases.verified(state.serving))
            self._settle_share(behind)
        return self.state

    def deploy(self, bundle: Path, in_place: bool = False, source: str | None = None) -> Deployment:
        """Copies and checks a bundle, tests it on the canary, and promotes it or rolls it back.

        `in_place`, or without a canary replica: the replicas are swapped one after another, and
        only their watch decides. An `OutriderError` where nothing was begun; `BundleRefused` where
        that is because of the bundle.
        """
        try:
            serving = self._adopted()
            new = self._checked(bundle, serving, source)
        except ReplicaUnreachable:
            raise
        except OutriderError as error:
            self.journal.append("refused", reason=str(error))
            raise BundleRefused(str(error)) from error
        if in_place or not self.endpoint.canary:
            verdict = Verdict("promote", "in place, without a canary", "controller")
            return self._run(new, serving, "in_place", verdict)
        return self._run(new, serving, "canary", None)

    def roll_back(self) -> Deployment:
        """Goes back to the release before the one in use, on all replicas."""
        state = self.state
        if state.serving is None or state.previous is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no release before the one in use"
                f" ({state.serving or 'none was deployed'}); nothing was changed"
            )
        self.releases.verified(state.previous)
        verdict = Verdict("promote", "by request", "operator")
        return self._run(state.previous, state.serving, "rollback", verdict)

    def promote(self) -> Deployment:
        """Finishes a deployment whose controller has stopped, by promoting it."""
        if self.state.open is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no deployment is in progress, so there is nothing"
                " to promote"
            )
        self._decided(Verdict("promote", "by request", "operator"))
        return self._finish()

    def _adopted(self) -> str:
        """The release in use; before the first one, what the replicas serve becomes one."""
        if self.state.serving is None:
            statuses = [self._sound(each.name) for each in self.endpoint.replicas]
            found = sorted({str(Path(each.directory).resolve()) for each in statuses})
            if len(found) != 1:
                raise OutriderError(
                    f"the replicas serve different speculators ({', '.join(found)}); start them"
                    " with the same bundle"
                )
            release = adopt(self.releases, Path(found[0]), statuses[0].k)
            self.journal.append("adopt", release=release.name, directory=found[0])
        serving = self.state.serving
        assert serving is not None
        return serving

    def _checked(self, bundle: Path, serving: str, source: str | None) -> str:
        """Name of the bundle's new release, which every replica can load."""
        self.releases.verified(serving)  # to go back to
        new = self.releases.add(bundle, source)
        if new.name == serving:
            raise OutriderError(f"{bundle}: release {new.name} is in use already")
        for each in self.endpoint.replicas:
            status = self._sound(each.name)
            for what, has, needs in (("kind", status.kind, new.kind), ("K", status.k, new.k)):
                if has != needs:
                    raise OutriderError(
                        f"{bundle}: {what} is {needs}, but {each.name} was started for {has}: a"
                        " live server cannot change that; start servers with this bundle's"
                        " serve.sh and shift the traffic (`deploy-speculator --manifest`)"
                    )
        return new.name

    def _sound(self, name: str) -> ReplicaStatus:
        """A replica's status; an `OutriderError` where nothing can be swapped there."""
        status = self.fleet.replicas[name].status()
        if status.broken:
            raise OutriderError(
                f"{name} drafts wrongly until it is started again: {status.broken}; start it again,"
                " then run this command again"
            )
        return status

    def _run(self, new: str, old: str, mode: Mode, verdict: Verdict | None) -> Deployment:
        """A deployment from its first journal entry to its last; without `verdict`, a canary's."""
        self.journal.append("begin", new=new, old=old, mode=mode)
        self.say(f"deployment of release {new}, in place of {old} ({mode})")
        self._decided(verdict or self._canary(self.releases.get(new), old))
        return self._finish()

    def _canary(self, new: Release, old: str) -> Verdict:
        """The test of the new release on the canary replicas."""
        self._share(fair_share(self.endpoint))
        test = CanaryTest(self.fleet, self.router, new.name, old, self.on_verdict)
        if (ended := test.measure_baseline()) is not None:
            return ended
        try:
            self._share(0)
            for each in self.endpoint.canary:
                status = self.fleet.replicas[each.name].status()
                self.fleet.swap(each.name, status, new, watched=True)
        except (SwapRefused, SwapFailed, ReplicaUnreachable) as error:
            return Verdict("roll_back", str(error), "controller")
        try:
            return test.run()
        except BaseException:  # Ctrl-C, a full disk: the canary gets no requests until `recover`
            with contextlib.suppress(RouterUnavailable):
                self.router.set_canary_share(0)
            raise

    def _finish(self) -> Deployment:
        """Carries out the verdict."""
        deployment = self.state.open
        assert deployment is not None
        behind: list[str] | None = None
        if deployment.verdict == "promote" and deployment.mode != "rollback":
            behind = self._promote(deployment)
        if behind is None:
            behind = self._go_back(deployment)
        self._settle_share(behind)
        serving = deployment.wanted
        outcome = "promoted" if deployment.verdict == "promote" else "rolled_back"
        self.journal.append("end", outcome=outcome, serving=serving, behind=behind)
        self.releases.prune(KEPT_RELEASES, self.state.in_use)
        self.say(f"{outcome}: {deployment.reason}; in use: {serving}")
        return deployment

    def _promote(self, deployment: Deployment) -> list[str] | None:
        """Replicas left behind; None if the new release was refused or taken back instead."""
        self._share(fair_share(self.endpoint))  # a watch needs requests
        try:
            return self.fleet.promote(
                self._canary_first(),
                self.releases.verified(deployment.new),
                set(deployment.swapped),
                self._look,
            )
        except Undone as error:
            self._decided(Verdict("roll_back", str(error), error.by))
        except OutriderError as error:  # refused, undecided, or the release is gone
            self._decided(Verdict("roll_back", str(error), "controller"))
        return None

    def _look(self, undecided_s: float) -> bool:
        """True where a person promotes what a replica's watch cannot decide in time."""
        deployment = self.state.open
        request = deployment.request if deployment is not None else None
        if request is not None and request[0] == "roll_back":
            raise Undone("by request", by=request[1])
        if undecided_s <= self.endpoint.policy.max_seconds:
            return False
        if request is None:
            raise Undone(
                f"undecided after {undecided_s:.0f} s: a replica had fewer than"
                f" {self.endpoint.policy.watch_requests} requests that its watch can compare"
            )
        return True

    def _go_back(self, deployment: Deployment) -> list[str]:
        """Brings every replica to the release of the verdict, the canary first; those left behind.

        Unwatched: it served before, and there is none to take it back to.
        """
        self._share(0)
        return self.fleet.bring(self._canary_first(), self.releases.verified(deployment.wanted))

    def _canary_first(self) -> list[str]:
        return [each.name for each in [*self.endpoint.canary, *self.endpoint.stable]]

    def _taken_back(self, serving: str) -> str | None:
        """Why the release in use must go: a replica took it back after its promotion."""
        for name in self.fleet.replicas:
            status = self.fleet.status(name)
            if status is not None and status.reverted == serving:
                return str(self.fleet.reverted(name, status))
        return None

    def _decided(self, verdict: Verdict) -> None:
        self.journal.append(
            "verdict",
            action=verdict.action,
            reason=verdict.reason,
            by=verdict.by,
            figures=verdict.figures,
        )
        self.say(f"verdict: {verdict.action}, by the {verdict.by}: {verdict.reason}")

    def _settle_share(self, behind: Collection[str]) -> None:
        """The canary's share between deployments: none where a canary was left behind."""
        is_behind = any(each.name in behind for each in self.endpoint.canary)
        self._share(0 if is_behind else fair_share(self.endpoint))

    def _share(self, percent: float) -> None:
        """Sets the canary's share; a router that is down gets it at the next start."""
        if not self.endpoint.canary:
            return
        differs = False
        try:
            differs = self.router.share() != percent
        except RouterUnavailable as error:
            self.say(str(error))
        if differs or self.state.share != percent:
            self.journal.append("share", percent=percent)
        if differs:
            with contextlib.suppress(RouterUnavailable):
                self.router.set_canary_share(percent)

    def _serves(self, name: str) -> str | None:
        status = self.fleet.status(name)
        return self.fleet.served_by(status) if status is not None else None


@contextlib.contextmanager
def controlled(
    endpoint: Endpoint,
    say: Say = lambda text: None,
    metrics: "LiveMetrics | None" = None,
) -> Iterator[Controller]:
    """The controller of an endpoint, with its lock held and its journal open.

    `Locked` where another process deploys to it. `metrics` are kept up to date.
    """
    listener = metrics.publish if metrics is not None else lambda state: None
    doing = (
        "is deploying to this endpoint; wait for it, or end its deployment with --rollback or"
        " --promote"
    )
    with lock(endpoint.lock, doing), Journal(endpoint.journal, listener=listener) as journal:
        controller = Controller(endpoint, journal, say)
        if metrics is not None:
            controller.on_verdict = metrics.decided
        yield controller


def deploy_bundle(
    bundle: str | Path,
    endpoint: Endpoint,
    in_place: bool = False,
    say: Say = lambda text: None,
    metrics: "LiveMetrics | None" = None,
) -> Deployment:
    """Tests a bundle on the endpoint's canary and promotes it or rolls it back; blocks until then.

    `bundle` is a folder, or an address that `export-speculator --to` wrote. A deployment that was
    interrupted is finished first. An `OutriderError` means that nothing was begun (a bad bundle, a
    replica that does not answer), or that a replica refuses to go back; then use `--recover`.
    """
    source = pinned(bundle)
    with controlled(endpoint, say, metrics) as controller, local_bundle(source) as directory:
        controller.recover()
        return controller.deploy(directory, in_place, source)


def end_deployment(
    endpoint: Endpoint, action: Action, by: str = "operator", say: Say = lambda text: None
) -> Deployment:
    """`--promote` and `--rollback`: of the deployment in progress, else of the one in use.

    Where another process deploys, its journal gets a request, and its end is waited for.
    """
    try:
        with controlled(endpoint, say) as controller:
            if action == "promote":
                return controller.promote()
            before = controller.state.last
            ended = controller.recover().last
            if ended is not None and ended is not before and ended.went_back:
                return ended
            return controller.roll_back()
    except Locked as busy:
        open_now = read_state(endpoint).open
        if open_now is None:
            raise
        with Journal(endpoint.journal) as journal:
            journal.append("request", deployment=open_now.id, action=action, by=by)
            say(
                f"process {busy.pid} was asked to {action.replace('_', ' ')} deployment"
                f" {open_now.id}"
            )
            while (last := journal.read().last) is None or last.id != open_now.id:
                if holder(endpoint.lock) is None:
                    raise OutriderError(
                        f"process {busy.pid} ended before the deployment did; run the command again"
                    ) from None
                time.sleep(_FOLLOW_S)
            return last


def read_state(endpoint: Endpoint) -> State:
    """What the journal says; needs no lock."""
    return fold(read_journal(endpoint.journal))
