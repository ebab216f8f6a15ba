"""The controller of a live endpoint: deploys a release, takes it back, and survives its own end.

    controller = Controller(endpoint, parts)
    controller.recover()                            # first, always
    deployment = controller.deploy(Path("runs/march/bundle"))
    deployment.outcome, deployment.reason

Every change is in the journal before it is made (state.py lists the entries). `recover` reads the
journal, asks the replicas what they serve, and brings all of them to one release: without a verdict
the old one, after a verdict the one that it names. A release that a replica took back since is
replaced by the one before it. `recover` may itself be interrupted and started again.
"""

from collections.abc import Collection
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.live.canary import CanaryTest, Verdict, fair_share
from outrider.live.control import clear_request, take_request
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import (
    Fleet,
    Reverted,
    known_directories,
    one_directory,
    served_by,
)
from outrider.live.parts import Parts
from outrider.live.releases import Release, adopt
from outrider.live.router import RouterUnavailable
from outrider.live.state import Deployment, Mode, State, fold
from outrider.serving.admin.replica import (
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapRefused,
)

KEPT_RELEASES = 5
"""Newest releases that are kept for a rollback."""


class _Stopped(Exception):
    """A person takes a promotion back while it goes on."""

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.by = by


class Controller:
    """Deploys to one endpoint; the caller holds its lock (control.py)."""

    def __init__(self, endpoint: Endpoint, parts: Parts) -> None:
        self.endpoint, self.parts = endpoint, parts
        self._fleet = Fleet(endpoint.policy, parts)

    @property
    def state(self) -> State:
        """What the journal says."""
        return fold(self.parts.journal.entries)

    # -- what a command does ----------------------------------------------------------------------

    def recover(self) -> State:
        """Brings every replica that answers to one release; the first thing after a start."""
        state = self.state
        if state.open is not None:
            self.parts.events.recovered()
            self.parts.say(f"deployment {state.open.id} was not finished")
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
                release = self.parts.releases.verified(state.serving)
                behind = self._fleet.bring(names, release, self._directories())
            self._settle_share(behind)
        return self.state

    def deploy(self, bundle: Path, in_place: bool = False, source: str | None = None) -> Deployment:
        """Copies and checks a bundle, tests it on the canary, and promotes it or rolls it back.

        `in_place`, or without a canary replica: the replicas are exchanged one after another, and
        only their watch decides. An `OutriderError` where nothing was begun.
        """
        state = self._adopted()
        assert state.serving is not None
        try:
            new = self._checked(bundle, state, source)
        except OutriderError as error:
            self.parts.journal.append("refused", reason=str(error))
            raise
        mode: Mode = "in_place" if in_place or not self.endpoint.canary else "canary"
        in_place_verdict = Verdict("promote", "in place, without a canary", "controller")
        return self._run(new, state.serving, mode, in_place_verdict if mode == "in_place" else None)

    def roll_back(self) -> Deployment:
        """Goes back to the release before the one in use, on all replicas."""
        state = self.state
        if state.serving is None or state.previous is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no release before the one in use"
                f" ({state.serving or 'none was deployed'}); nothing was changed"
            )
        self.parts.releases.verified(state.previous)
        verdict = Verdict("promote", "by request", "operator")
        return self._run(state.previous, state.serving, "rollback", verdict)

    def promote(self) -> Deployment:
        """Finishes a deployment that nobody is at any more by promoting it."""
        if self.state.open is None:
            raise OutriderError(
                f"endpoint {self.endpoint.name}: no deployment is in progress, so there is nothing"
                " to promote"
            )
        self._decided(Verdict("promote", "by request", "operator"))
        return self._finish()

    # -- the parts of it --------------------------------------------------------------------------

    def _adopted(self) -> State:
        """The state, with what the replicas serve now as a release if there is none yet."""
        if self.state.serving is None:
            statuses = [self._sound(each.name) for each in self.endpoint.replicas]
            directory = one_directory(statuses)
            release = adopt(self.parts.releases, directory, statuses[0].k)
            self.parts.journal.append("adopt", release=release.name, directory=str(directory))
            self.parts.say(f"in use: {directory}, kept as release {release.name}")
        return self.state

    def _checked(self, bundle: Path, state: State, source: str | None) -> str:
        """The name of the new release: complete, as is the one in use, and fit for each replica."""
        assert state.serving is not None
        if self.parts.journal.low_on_space:
            raise OutriderError(
                f"{self.endpoint.state_dir}: no space left on the disk; free some first"
            )
        old = self.parts.releases.verified(state.serving)  # what a rollback needs
        new = self.parts.releases.add(bundle, state.serving, source)
        if new.name == old.name:
            raise OutriderError(f"{bundle}: release {new.name} is in use already")
        self.parts.releases.verified(new.name)
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
        """A replica's status; an `OutriderError` where nothing can be exchanged there."""
        status = self.parts.replicas[name].status()
        if status.broken:
            raise OutriderError(
                f"{name} drafts wrongly until it is started again: {status.broken}; start it again,"
                " then run this command again"
            )
        return status

    def _run(self, new: str, old: str, mode: Mode, verdict: Verdict | None = None) -> Deployment:
        """A deployment from its first journal entry to its last; without `verdict`, a canary's."""
        clear_request(self.endpoint.state_dir)
        self.parts.journal.append("begin", new=new, old=old, mode=mode)
        self.parts.events.deployment_started()
        self.parts.say(f"deployment of release {new}, in place of {old} ({mode})")
        self._decided(verdict or self._canary(self.parts.releases.get(new), old))
        return self._finish()

    def _canary(self, new: Release, old: str) -> Verdict:
        """The test of the new release on the canary replicas."""
        self.parts.events.state("canary")
        try:
            self._share(0)
            for each in self.endpoint.canary:
                status = self.parts.replicas[each.name].status()
                self._fleet.exchange(each.name, status, new, watched=True)
        except (SwapRefused, SwapFailed, ReplicaUnreachable) as error:
            return Verdict("roll_back", str(error), "controller")
        return CanaryTest(
            self.endpoint, self._fleet, self.parts, new, old, self._directories()
        ).run()

    def _finish(self) -> Deployment:
        """Carries out the verdict."""
        deployment = self.state.open
        assert deployment is not None
        behind: list[str] | None = None
        if deployment.verdict == "promote" and deployment.mode != "rollback":
            self.parts.events.state("promoting")
            behind = self._promote(deployment)
        if behind is None:
            self.parts.events.state("rolling_back")
            behind = self._go_back()
        self._settle_share(behind)
        deployment = self.state.open
        assert deployment is not None
        serving = deployment.wanted
        outcome = "promoted" if deployment.verdict == "promote" else "rolled_back"
        self.parts.journal.append("end", outcome=outcome, serving=serving, behind=behind)
        clear_request(self.endpoint.state_dir)
        state = self.state
        assert state.last is not None and state.last.outcome is not None
        self.parts.releases.prune(KEPT_RELEASES, state.in_use)
        self.parts.events.deployment_finished(state.last.outcome)
        self.parts.events.state("idle")
        self.parts.say(f"{state.last.outcome}: {state.last.reason}; in use: {serving}")
        return state.last

    def _promote(self, deployment: Deployment) -> list[str] | None:
        """Replicas left behind; None if the new release was refused or taken back instead."""
        self._share(fair_share(self.endpoint))  # a watch needs requests
        try:
            return self._fleet.promote(
                self._canary_first(),
                self.parts.releases.verified(deployment.new),
                self._directories(),
                deployment.exchanged,
                self._look,
            )
        except _Stopped as stopped:
            self._decided(Verdict("roll_back", "by request", stopped.by))
        except Reverted as error:
            self._decided(Verdict("roll_back", str(error), "watch"))
        except OutriderError as error:  # refused, undecided, or the release is gone
            self._decided(Verdict("roll_back", str(error), "controller"))
        return None

    def _look(self, undecided_s: float) -> bool:
        """True where a person promotes what a replica's watch cannot decide in time."""
        request = take_request(self.endpoint.state_dir)
        if request is not None and request.action == "roll_back":
            raise _Stopped(request.by)
        policy = self.endpoint.policy
        if undecided_s <= policy.max_seconds:
            return False
        if policy.on_undecided == "roll_back":
            raise OutriderError(
                f"undecided after {undecided_s:.0f} s: a replica had fewer than"
                f" {policy.watch_requests} requests that its watch can compare"
            )
        return request is not None

    def _go_back(self) -> list[str]:
        """Brings every replica to the release of the verdict, the canary first; those left behind.

        Unwatched: it served before, and there is none to take it back to.
        """
        deployment = self.state.open
        assert deployment is not None
        self._share(0)
        release = self.parts.releases.verified(deployment.wanted)
        return self._fleet.bring(self._canary_first(), release, self._directories())

    def _canary_first(self) -> list[str]:
        replicas = sorted(self.endpoint.replicas, key=lambda each: each.role != "canary")
        return [each.name for each in replicas]

    def _taken_back(self, serving: str) -> str | None:
        """Why the release in use must go: a replica took it back after its promotion."""
        for name in self.parts.replicas:
            status = self._fleet.status(name)
            if status is not None and status.reverted == serving:
                return str(self._fleet.reverted(name, status))
        return None

    def _decided(self, verdict: Verdict) -> None:
        self.parts.journal.append(
            "verdict",
            action=verdict.action,
            reason=verdict.reason,
            by=verdict.by,
            figures=verdict.figures,
        )
        self.parts.say(f"verdict: {verdict.action}, by the {verdict.by}: {verdict.reason}")

    def _settle_share(self, behind: Collection[str]) -> None:
        """The canary's share between deployments: none where a canary was left behind."""
        is_behind = any(each.name in behind for each in self.endpoint.canary)
        self._share(0 if is_behind else fair_share(self.endpoint))

    def _share(self, percent: float) -> None:
        """Sets the canary's share; a router that is down gets it at the next start."""
        if not self.endpoint.canary:
            return
        if self.state.share != percent:
            self.parts.journal.append("share", percent=percent)
        try:
            if self.parts.router.share() != percent:
                self.parts.router.set_canary_share(percent)
            self.parts.events.share(percent)
        except RouterUnavailable as error:
            self.parts.say(str(error))

    def _directories(self) -> dict[str, str]:
        return known_directories(self.state, self.parts.releases)

    def _serves(self, name: str) -> str | None:
        status = self._fleet.status(name)
        return served_by(status, self._directories()) if status is not None else None
