"""State of an endpoint's deployments, from its journal.

    state = read_state(endpoint)
    state.serving, state.open, state.previous

| event | written before | facts |
|---|---|---|
| `adopt` | anything else | release, and the directory that the replicas were started with |
| `erased` | replicas are swapped | replaced: releases, those without the sessions; sessions |
| `begin` | the first swap | new, old, mode: canary, in_place or rollback |
| `share` | the router is set | percent |
| `swap` | a replica's speculator is swapped | replica, release |
| `swapped` | nothing | replica, release, and its times in seconds |
| `reverted` | the rollback of a release that a replica reverted | replica, release, reason |
| `request` | nothing | deployment, action, by; from another process's `--promote` or `--rollback` |
| `verdict` | it is acted on | action: promote, roll_back or wait; reason; by: whom; figures |
| `end` | nothing | outcome: promoted or rolled_back; serving; behind: replicas left behind |

A verdict `wait` begins a second baseline (canary.py). With it or without a verdict, a deployment
whose controller has stopped is rolled back; otherwise its last verdict is carried out. A state is
immutable: each entry gives a new one, so a state or deployment that the controller holds does not
change when it appends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NotRequired, TypedDict, cast

from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Entry, read_journal, state_after

Mode = Literal["canary", "in_place", "rollback"]

Action = Literal["wait", "promote", "roll_back", "second_baseline"]
"""`second_baseline`: slow, but that may be the canary's replicas; `wait` in the journal."""

Outcome = Literal["promoted", "rolled_back"]

PROMOTED: Outcome = "promoted"
"""Outcome of a deployment that leaves the new release in use."""


class Figures(TypedDict, total=False):
    """The judge's figures (judge.py); an unknown ratio is None."""

    stable_requests: int
    canary_requests: int
    failures: int
    replica: float
    """Canary / stable speed before the swap. The other ratios are divided by those before it."""
    speed: list[float | None]
    """Value, low, high."""
    acceptance: float | None
    ttft: float | None
    latency_p99: float | None


@dataclass(frozen=True)
class DeploymentVerdict:
    """The decision about a new release, its reason, and who made it."""

    action: Action
    reason: str
    """One line, without customer text."""
    by: str = "controller"
    """Who decided: judge, watch, operator or controller."""
    figures: Figures = field(default_factory=Figures)
    """The judge's figures; empty if it did not decide."""


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
    request: DeploymentVerdict | None = None
    """An operator's request, made in another process."""
    verdict: DeploymentVerdict = DeploymentVerdict("wait", "")
    ended_at: float | None = None
    outcome: Outcome | None = None
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
    erased: frozenset[bytes] = frozenset()
    """`session_key`s of the sessions that no release may have."""

    def add(self, entry: Entry) -> "State":
        """Returns the state after `entry`; events of adaptation change nothing."""
        # Any change of load or speculator, so that a baseline never mixes two states.
        state = self
        if entry.event in _UNSETTLING:
            state = replace(state, steady_since=entry.at)
        if entry.event in _STATE_EVENTS:
            return _STATE_EVENTS[entry.event](state, entry)
        if entry.event in _DEPLOYMENT_EVENTS and state.open is not None:
            return replace(state, open=_DEPLOYMENT_EVENTS[entry.event](state.open, entry))
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
        state = state_after(state, entry, endpoint.journal)
    return state


class _Adopt(TypedDict):
    release: str
    directory: str


def _adopted(state: State, entry: Entry) -> State:
    facts = cast(_Adopt, entry.facts)
    started_with = {**state.started_with, facts["directory"]: facts["release"]}
    return replace(state, started_with=started_with, serving=state.serving or facts["release"])


class _Erased(TypedDict):
    """`sessions` is missing in entries of older versions."""

    replaced: dict[str, str]
    sessions: NotRequired[list[str]]


def _erased(state: State, entry: Entry) -> State:
    """Renames each release that lost sessions to the one without them, and notes the sessions.

    `replaced` has the name of the new release for each old one.
    """
    facts = cast(_Erased, entry.facts)
    replaced = facts["replaced"]
    before = {}
    for release, predecessor in state.before.items():
        before[replaced.get(release, release)] = replaced.get(predecessor, predecessor)
    serving = None if state.serving is None else replaced.get(state.serving, state.serving)
    erased = state.erased | {bytes.fromhex(session) for session in facts.get("sessions", [])}
    return replace(state, serving=serving, before=before, erased=erased)


class _Begin(TypedDict):
    new: str
    old: str
    mode: Mode


def _begun(state: State, entry: Entry) -> State:
    facts = cast(_Begin, entry.facts)
    deployment = Deployment(
        id=entry.n,
        new=facts["new"],
        old=facts["old"],
        mode=facts["mode"],
        began_at=entry.at,
    )
    return replace(state, open=deployment)


class _Share(TypedDict):
    percent: float


def _share_set(state: State, entry: Entry) -> State:
    return replace(state, share=cast(_Share, entry.facts)["percent"])


class _Swap(TypedDict):
    """Facts of `swap` and `swapped`."""

    replica: str
    release: str


def _swapped(state: State, entry: Entry) -> State:
    facts = cast(_Swap, entry.facts)
    return replace(state, served={**state.served, facts["replica"]: facts["release"]})


class _End(TypedDict):
    outcome: Outcome
    serving: str
    behind: list[str]


def _ended(state: State, entry: Entry) -> State:
    if state.open is None:
        return state
    facts = cast(_End, entry.facts)
    # `behind` names replicas for the status; the next `recover` reads what each one serves.
    ended = replace(
        state.open,
        ended_at=entry.at,
        outcome=facts["outcome"],
        behind=tuple(facts["behind"]),
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
        serving=facts["serving"],
        before=before,
        counts=counts,
        open=None,
        last=ended,
    )


def _swap_begun(deployment: Deployment, entry: Entry) -> Deployment:
    facts = cast(_Swap, entry.facts)
    replica = facts["replica"]
    # Not a replica that goes back, or that gets the release again after a second baseline.
    if facts["release"] != deployment.new or replica in deployment.swapped:
        return deployment
    return replace(deployment, swapped=(*deployment.swapped, replica))


class _Request(TypedDict):
    deployment: int
    action: Literal["promote", "roll_back"]
    by: str


def _requested(deployment: Deployment, entry: Entry) -> Deployment:
    facts = cast(_Request, entry.facts)
    # The requesting process read the journal before it wrote, so the deployment may be another one.
    if facts["deployment"] != deployment.id:
        return deployment
    return replace(
        deployment, request=DeploymentVerdict(facts["action"], "by request", facts["by"])
    )


class _Verdict(TypedDict):
    action: Literal["wait", "promote", "roll_back"]
    reason: str
    by: str
    figures: Figures


def _decided(deployment: Deployment, entry: Entry) -> Deployment:
    return replace(deployment, verdict=DeploymentVerdict(**cast(_Verdict, entry.facts)))


_UNSETTLING = {"share", "swap", "swapped", "reverted"}
"""Events of a changed share or speculator."""

_STATE_EVENTS: dict[str, Callable[[State, Entry], State]] = {
    "adopt": _adopted,
    "erased": _erased,
    "begin": _begun,
    "share": _share_set,
    "swapped": _swapped,
    "end": _ended,
}

_DEPLOYMENT_EVENTS: dict[str, Callable[[Deployment, Entry], Deployment]] = {
    "swap": _swap_begun,
    "request": _requested,
    "verdict": _decided,
}
"""Events of the deployment in progress."""
