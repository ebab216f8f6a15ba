"""State of an endpoint's deployments, from its journal.

    state = read_state(endpoint)
    state.serving, state.open, state.previous

| event | written before | facts |
|---|---|---|
| `adopt` | anything else | release, and the directory that the replicas were started with |
| `begin` | the first swap | new, old, mode: canary, in_place or rollback |
| `share` | the router is set | percent |
| `swap` | a replica's speculator is swapped | replica, release |
| `swapped` | nothing | replica, release, and its times in seconds |
| `reverted` | the rollback of a release that a replica reverted | replica, release, reason |
| `request` | nothing | deployment, action, by; from another process's `--promote` or `--rollback` |
| `verdict` | it is acted on | action: promote or roll_back; reason; by: whom; figures |
| `end` | nothing | outcome: promoted or rolled_back; serving; behind: replicas left behind |

Without a verdict, a deployment whose controller has stopped is rolled back; otherwise its last
verdict is carried out. A state is immutable: each entry gives a new one, so a state or deployment
that the controller holds does not change when it appends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Entry, read_journal

Mode = Literal["canary", "in_place", "rollback"]

PROMOTED = "promoted"
"""Outcome of a deployment that leaves the new release in use."""


@dataclass(frozen=True)
class Verdict:
    """The decision about a new release, its reason, and who made it."""

    action: Literal["wait", "promote", "roll_back"]
    reason: str
    """One line, without customer text."""
    by: str = "controller"
    """Who decided: judge, watch, operator or controller."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The judge's figures (judge.py)."""


@dataclass(frozen=True)
class Deployment:
    """A deployment, in progress or ended."""

    id: int
    """Line number of its first journal entry."""
    new: str
    """Name of the release being deployed."""
    old: str
    mode: Mode
    began_at: float
    swapped: tuple[str, ...] = ()
    """Replicas whose swap to the new release has begun."""
    request: Verdict | None = None
    """An operator's request, made in another process."""
    verdict: Verdict = Verdict("wait", "")
    ended_at: float | None = None
    outcome: Literal["promoted", "rolled_back"] | None = None
    behind: tuple[str, ...] = ()
    """Replicas that did not get `goal`: unreachable, broken, or refusing the swap."""

    @property
    def goal(self) -> str:
        """The release that all replicas should serve in the end."""
        return self.new if self.verdict.action == "promote" else self.old

    @property
    def went_back(self) -> bool:
        """Whether it ended with the older of its two releases in use."""
        return self.outcome is not None and (
            (self.outcome == "rolled_back") != (self.mode == "rollback")
        )


@dataclass(frozen=True)
class State:
    """State of an endpoint after all entries of its journal."""

    serving: str | None = None
    """Name of the release in use; None before the first deployment."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Maps each release to the one that it replaced."""
    started_with: Mapping[str, str] = field(default_factory=dict)
    """Maps each speculator directory used at server start to the release of that speculator."""
    share: float | None = None
    """The most recently set canary share, in percent."""
    steady_since: float = 0.0
    """Unix time in seconds of the last change to a share or a speculator."""
    open: Deployment | None = None
    """The deployment in progress."""
    last: Deployment | None = None
    """The last deployment that ended."""
    counts: Mapping[str, int] = field(default_factory=lambda: {"promoted": 0, "rolled_back": 0})
    """Number of deployments by outcome."""
    served: Mapping[str, str] = field(default_factory=dict)
    """The release that each replica received last."""

    def add(self, entry: Entry) -> "State":
        """Returns the state after `entry`; events of adaptation change nothing."""
        state = self
        if entry.event in _UNSETTLING:
            state = replace(state, steady_since=entry.at)
        if entry.event in _STATE_EVENTS:
            return _STATE_EVENTS[entry.event](state, entry)
        if entry.event in _DEPLOYMENT_EVENTS and state.open is not None:
            return replace(state, open=_DEPLOYMENT_EVENTS[entry.event](state.open, entry.facts))
        return state

    @property
    def previous(self) -> str | None:
        """The release that a rollback restores."""
        return self.before.get(self.serving) if self.serving else None

    @property
    def in_use(self) -> set[str]:
        """Releases that must not be deleted."""
        names = {self.serving, self.previous, *self.started_with.values()}
        if self.open is not None:
            names |= {self.open.new, self.open.old}
        return {name for name in names if name is not None}


def read_state(endpoint: Endpoint) -> State:
    """Reads the state after all entries; needs no lock."""
    state = State()
    for entry in read_journal(endpoint.journal):
        state = state.add(entry)
    return state


def _adopted(state: State, entry: Entry) -> State:
    release = entry.facts["release"]
    started_with = {**state.started_with, entry.facts["directory"]: release}
    return replace(state, started_with=started_with, serving=state.serving or release)


def _begun(state: State, entry: Entry) -> State:
    deployment = Deployment(
        id=entry.n,
        new=entry.facts["new"],
        old=entry.facts["old"],
        mode=entry.facts["mode"],
        began_at=entry.at,
    )
    return replace(state, open=deployment)


def _share_set(state: State, entry: Entry) -> State:
    return replace(state, share=entry.facts["percent"])


def _swapped(state: State, entry: Entry) -> State:
    served = {**state.served, entry.facts["replica"]: entry.facts["release"]}
    return replace(state, served=served)


def _ended(state: State, entry: Entry) -> State:
    if state.open is None:
        return state
    # `behind` names replicas for the status; the next `recover` reads what each one serves.
    ended = replace(
        state.open,
        ended_at=entry.at,
        outcome=entry.facts["outcome"],
        behind=tuple(entry.facts["behind"]),
    )
    counts = dict(state.counts)
    before = state.before
    if ended.outcome == PROMOTED and ended.mode != "rollback":
        before = {**before, ended.new: ended.old}
        counts["promoted"] += 1
    if ended.went_back:
        counts["rolled_back"] += 1
    return replace(
        state,
        serving=entry.facts["serving"],
        before=before,
        counts=counts,
        open=None,
        last=ended,
    )


def _swap_begun(deployment: Deployment, facts: Mapping[str, Any]) -> Deployment:
    if facts["release"] != deployment.new:  # a replica that goes back
        return deployment
    return replace(deployment, swapped=(*deployment.swapped, facts["replica"]))


def _requested(deployment: Deployment, facts: Mapping[str, Any]) -> Deployment:
    # The requesting process read the journal before it wrote, so the deployment may be another one.
    if facts["deployment"] != deployment.id:
        return deployment
    return replace(deployment, request=Verdict(facts["action"], "by request", facts["by"]))


def _decided(deployment: Deployment, facts: Mapping[str, Any]) -> Deployment:
    return replace(deployment, verdict=Verdict(**facts))


_UNSETTLING = {"share", "swap", "swapped", "reverted"}
"""Events of a changed share or speculator."""

_STATE_EVENTS: dict[str, Callable[[State, Entry], State]] = {
    "adopt": _adopted,
    "begin": _begun,
    "share": _share_set,
    "swapped": _swapped,
    "end": _ended,
}

_DEPLOYMENT_EVENTS: dict[str, Callable[[Deployment, Mapping[str, Any]], Deployment]] = {
    "swap": _swap_begun,
    "request": _requested,
    "verdict": _decided,
}
"""Events of the deployment in progress."""
