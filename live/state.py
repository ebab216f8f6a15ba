"""State of an endpoint, from its journal: releases, deployments, adaptation.

    state = read_state(endpoint)    # journal.py
    state.serving, state.open, state.usable[-1].acceptance

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
verdict is carried out. `outrider adapt` records finished steps, so a killed process repeats at
most one step:

| event | facts |
|---|---|
| `start` | position at which reading of the log begins |
| `window` | window, rows, skipped, position: a slice of the log was cut |
| `watched` | window, release, acceptance, ratio, gpu_seconds: captured and replayed |
| `refused_window` | window, reason, gpu_seconds |
| `round` | round, newer, older, reason: training on these windows begins |
| `trained` | round, sequences, gpu_seconds |
| `gated` | round, ships, reason, gpu_seconds |
| `deployed` | round, outcome |
| `deleted` | windows |
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider.eval.results.parts import ClusteredEstimate

Mode = Literal["canary", "in_place", "rollback"]

PROMOTED = "promoted"
"""Outcome of a deployment that leaves the new release in use."""


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    n: int
    """Line number, from 1."""
    at: float
    """Unix time in seconds."""
    event: str
    facts: dict[str, Any]
    """Other facts about the event, without customer text."""


@dataclass(frozen=True)
class Verdict:
    """The decision about a new release, its reason, and who made it."""

    action: Literal["wait", "promote", "roll_back"]
    reason: str
    """One line, without customer text."""
    by: str = "controller"
    """Who decided: judge, watch, operator or controller."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The judge's figures (judge.py)."""


@dataclass
class Deployment:
    """A deployment, in progress or ended."""

    id: int
    """Line number of its first journal entry."""
    new: str
    """Name of the release being deployed."""
    old: str
    mode: Mode
    began_at: float
    swapped: list[str] = field(default_factory=list)
    """Replicas whose swap to the new release has begun."""
    request: Verdict | None = None
    """An operator's request, made in another process."""
    verdict: Verdict = Verdict("wait", "")
    ended_at: float | None = None
    outcome: Literal["promoted", "rolled_back"] | None = None
    behind: list[str] = field(default_factory=list)
    """Replicas that did not get `wanted`: unreachable, broken, or refusing the swap."""

    @property
    def wanted(self) -> str:
        """The release that all replicas should serve in the end."""
        return self.new if self.verdict.action == "promote" else self.old

    @property
    def went_back(self) -> bool:
        """Whether it ended with the older of its two releases in use."""
        return self.outcome is not None and (
            (self.outcome == "rolled_back") != (self.mode == "rollback")
        )


@dataclass
class Window:
    """A slice of the traffic."""

    n: int
    rows: int
    at: float
    """When it was cut, Unix time in seconds."""
    settled: bool = False
    """Whether it was captured and measured, or refused."""
    release: str = ""
    """The speculator in use when it was measured."""
    acceptance: ClusteredEstimate | None = None
    """Acceptance length; None until it is measured, or if the window was refused."""
    ratio: ClusteredEstimate | None = None
    """Ratio to the base's acceptance length on the same responses; None if not compared."""
    deleted: bool = False


@dataclass
class Round:
    """A training round."""

    n: int
    newer: list[int]
    """Windows since the previous round."""
    older: list[int]
    trained: bool = False
    ships: bool | None = None
    """The gate's verdict; None until the gate has decided."""
    outcome: str | None = None

    @property
    def settled(self) -> bool:
        """Whether it failed the gate or its deployment has ended."""
        return self.ships is False or self.outcome is not None

    @property
    def won(self) -> bool:
        """Whether its speculator was promoted."""
        return self.outcome == PROMOTED


@dataclass
class State:
    """State of an endpoint after all entries of its journal."""

    serving: str | None = None
    """Name of the release in use; None before the first deployment."""
    before: dict[str, str] = field(default_factory=dict)
    """Maps each release to the one that it replaced."""
    started_with: dict[str, str] = field(default_factory=dict)
    """Maps each speculator directory used at server start to the release of that speculator."""
    share: float | None = None
    """The most recently set canary share, in percent."""
    steady_since: float = 0.0
    """Unix time in seconds of the last change to a share or a speculator."""
    open: Deployment | None = None
    """The deployment in progress."""
    last: Deployment | None = None
    """The last deployment that ended."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of deployments by outcome: promoted, rolled_back."""
    served: dict[str, str] = field(default_factory=dict)
    """The release that each replica received last."""
    position: dict[str, int] | None = None
    """Position at which to continue reading the log; None before the first start."""
    windows: dict[int, Window] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    spent: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of Unix time and GPU-seconds of the capture, training or replay that ended then."""

    def add(self, entry: Entry) -> None:
        """Applies one entry."""
        facts = entry.facts
        if gpu_seconds := facts.get("gpu_seconds"):
            self.spent.append((entry.at, gpu_seconds))
        if entry.event in ("share", "swap", "swapped", "reverted"):
            self.steady_since = entry.at
        match entry.event:
            case "adopt":
                self.started_with[facts["directory"]] = facts["release"]
                self.serving = self.serving or facts["release"]
            case "begin":
                self.open = Deployment(
                    id=entry.n,
                    new=facts["new"],
                    old=facts["old"],
                    mode=facts["mode"],
                    began_at=entry.at,
                )
            case "share":
                self.share = facts["percent"]
            case "swap" if self.open is not None and facts["release"] == self.open.new:
                self.open.swapped.append(facts["replica"])
            case "swapped":
                self.served[facts["replica"]] = facts["release"]
            case "request" if self.open is not None and self.open.id == facts["deployment"]:
                self.open.request = Verdict(facts["action"], "by request", facts["by"])
            case "verdict" if self.open is not None:
                self.open.verdict = Verdict(**facts)
            case "end" if self.open is not None:
                self._ended(self.open, entry)
            case "start":
                self.position = facts["position"]
            case "window":
                self.position = {**(self.position or {}), **facts["position"]}
                number = facts["window"]
                self.windows[number] = Window(number, facts["rows"], entry.at)
            case "watched":
                window = self.windows[facts["window"]]
                window.settled = True
                window.release = facts["release"]
                window.acceptance = ClusteredEstimate(**facts["acceptance"])
                if facts["ratio"]:
                    window.ratio = ClusteredEstimate(**facts["ratio"])
            case "refused_window":
                self.windows[facts["window"]].settled = True
            case "round":
                self.rounds.append(Round(facts["round"], facts["newer"], facts["older"]))
            case "trained":
                self.rounds[-1].trained = True
            case "gated":
                self.rounds[-1].ships = facts["ships"]
            case "deployed":
                self.rounds[-1].outcome = facts["outcome"]
            case "deleted":
                for number in facts["windows"]:
                    self.windows[number].deleted = True

    def _ended(self, ended: Deployment, entry: Entry) -> None:
        ended.ended_at = entry.at
        ended.outcome = entry.facts["outcome"]
        ended.behind = entry.facts["behind"]
        if ended.outcome == PROMOTED and ended.mode != "rollback":
            self.before[ended.new] = ended.old
            self.counts["promoted"] += 1
        self.counts["rolled_back"] += ended.went_back
        self.serving = entry.facts["serving"]
        self.open = None
        self.last = ended

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

    @property
    def usable(self) -> list[Window]:
        """Windows that were captured and measured."""
        return [window for window in self.windows.values() if window.acceptance]

    @property
    def pending_round(self) -> Round | None:
        """The round that is under way."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].settled else None

    @property
    def last_trained(self) -> int:
        """Highest window number in any round; 0 if there are no rounds."""
        return max((max(each.newer) for each in self.rounds), default=0)

    @property
    def fresh(self) -> list[Window]:
        """Windows since the last round, for its gate or the next round."""
        return [each for each in self.usable if each.n > self.last_trained and not each.deleted]

    @property
    def older(self) -> list[Window]:
        """The windows of all rounds so far, except deleted ones."""
        return [each for each in self.usable if each.n <= self.last_trained and not each.deleted]

    @property
    def losses(self) -> int:
        """Number of settled rounds since the last promotion."""
        count = 0
        for each in reversed(self.rounds):
            if each.won:
                break
            count += each.settled
        return count
