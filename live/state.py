"""What an endpoint's journal says: the release in use, and the deployment in progress.

    state = fold(read_journal(endpoint.state_dir / "journal.jsonl"))
    state.serving, state.open

| event | written before | facts |
|---|---|---|
| `adopt` | anything else | release, and the directory that the replicas were started with |
| `begin` | the first exchange | deployment, new, old, mode: canary, in_place or rollback |
| `share` | the router is set | percent |
| `swap` | a replica is exchanged | replica, release |
| `reverted` | a release that a replica took back is replaced | replica, release, reason |
| `verdict` | it is acted on | action: promote or roll_back; reason; by: whom; figures |
| `end` | nothing | outcome: promoted or rolled_back; serving; behind: replicas left out |
| `refused` | nothing | reason: nothing was begun |

Events of others are left out. Without a verdict, a deployment that nobody is at any more is rolled
back; with one, the last verdict is carried out.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from outrider.live.journal import Entry

Action = Literal["promote", "roll_back"]
Mode = Literal["canary", "in_place", "rollback"]


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A deployment that has begun, and perhaps ended."""

    id: int
    """Number of its first entry."""
    new: str
    """Name of the release that is deployed."""
    old: str
    mode: Mode
    began_at: float
    exchanged: frozenset[str] = frozenset()
    """Replicas that were to get the new release."""
    verdict: Action | None = None
    reason: str = ""
    by: str = ""
    """Who gave the verdict: judge, watch, operator, controller."""
    decided_at: float | None = None
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Figures of the decision."""
    ended_at: float | None = None
    outcome: Literal["promoted", "rolled_back"] | None = None
    behind: tuple[str, ...] = ()
    """Replicas that could not be reached at the end."""

    @property
    def wanted(self) -> str:
        """The release that every replica has in the end."""
        return self.new if self.verdict == "promote" else self.old

    @property
    def went_back(self) -> bool:
        """Whether it ended with the older one of its two releases."""
        return self.outcome is not None and (
            (self.outcome == "rolled_back") != (self.mode == "rollback")
        )


@dataclasses.dataclass(frozen=True)
class State:
    """An endpoint, as its journal has it."""

    serving: str | None = None
    """Name of the release in use; None before the first deployment."""
    before: dict[str, str] = dataclasses.field(default_factory=dict)
    """For each release the one that it replaced."""
    started_with: dict[str, str] = dataclasses.field(default_factory=dict)
    """Directories that servers were started with, and the releases with the same speculator."""
    share: float | None = None
    """The canary's share that was set last, in percent."""
    open: Deployment | None = None
    """The deployment in progress."""
    last: Deployment | None = None
    """The last one that ended."""
    promoted: int = 0
    rolled_back: int = 0
    refused: int = 0

    @property
    def previous(self) -> str | None:
        """What a rollback goes back to."""
        return self.before.get(self.serving) if self.serving else None

    @property
    def in_use(self) -> set[str]:
        """Releases that must not be deleted."""
        names = {self.serving, self.previous, *self.started_with.values()}
        if self.open is not None:
            names |= {self.open.new, self.open.old}
        return {name for name in names if name is not None}

    def after(self, entry: Entry) -> "State":
        """The state with one more entry."""
        facts = entry.facts
        match entry.event:
            case "adopt":
                known = self.started_with | {facts["directory"]: facts["release"]}
                serving = self.serving or facts["release"]
                return dataclasses.replace(self, serving=serving, started_with=known)
            case "begin":
                begun = Deployment(entry.n, facts["new"], facts["old"], facts["mode"], entry.at)
                return dataclasses.replace(self, open=begun)
            case "share":
                return dataclasses.replace(self, share=facts["percent"])
            case "swap":
                return dataclasses.replace(self, open=_exchanged(self.open, entry))
            case "verdict":
                return dataclasses.replace(self, open=_decided(self.open, entry))
            case "end":
                return self._ended(entry)
            case "refused":
                return dataclasses.replace(self, refused=self.refused + 1)
        return self

    def _ended(self, entry: Entry) -> "State":
        assert self.open is not None
        outcome = entry.facts["outcome"]
        ended = dataclasses.replace(
            self.open,
            ended_at=entry.at,
            outcome=outcome,
            behind=tuple(entry.facts["behind"]),
        )
        before = dict(self.before)
        if outcome == "promoted" and ended.mode != "rollback":
            before[ended.new] = ended.old
        return dataclasses.replace(
            self,
            serving=entry.facts["serving"],
            before=before,
            open=None,
            last=ended,
            promoted=self.promoted + (outcome == "promoted" and ended.mode != "rollback"),
            rolled_back=self.rolled_back + ended.went_back,
        )


def _decided(deployment: Deployment | None, entry: Entry) -> Deployment:
    assert deployment is not None
    facts = dict(entry.facts)
    return dataclasses.replace(
        deployment,
        verdict=facts.pop("action"),
        reason=facts.pop("reason"),
        by=facts.pop("by"),
        decided_at=entry.at,
        figures=facts.get("figures") or {},
    )


def _exchanged(deployment: Deployment | None, entry: Entry) -> Deployment | None:
    if deployment is None or entry.facts["release"] != deployment.new:
        return deployment
    names = deployment.exchanged | {entry.facts["replica"]}
    return dataclasses.replace(deployment, exchanged=names)


def fold(entries: Iterable[Entry]) -> State:
    """The state after all entries."""
    state = State()
    for entry in entries:
        state = state.after(entry)
    return state
