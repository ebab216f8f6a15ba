"""What `adapt-speculator` has done, from the entries of its journal.

    state = AdaptState.of(journal.entries)
    state.windows[-1].acceptance, state.pending_round

The journal is the only state: every step is decided from it, and is appended when it is done. So a
process that was killed repeats at most the step that it was in. Events:

    start      position: where tailing begins
    window     window, rows, skipped, position: a slice of the log was cut
    watched    window, sequences, sessions, release, k, acceptance, seconds: captured, replayed
    refused    window, reason: it could not be used
    round      round, newer, older, reason: a training round begins on these windows
    trained    round, sequences, seconds
    gated      round, ships, reason, windows, acceptance, seconds
    deployed   round, outcome, release
    deleted    windows: no longer kept
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from outrider.eval.report.past_run import PastClustered

PROMOTED = "promoted"
"""Outcome of a deployment after which the new speculator serves."""


class Entry(Protocol):
    """An entry of live/journal.py."""

    @property
    def at(self) -> float: ...
    @property
    def event(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...


@dataclass
class Window:
    """A slice of the traffic."""

    n: int
    rows: int
    at: float
    """When it was cut, Unix time in seconds"""
    settled: bool = False
    """Captured and measured, or refused"""
    usable: bool = False
    release: str | None = None
    """The speculator in use when it was measured"""
    acceptance: PastClustered | None = None
    deleted: bool = False


@dataclass
class Round:
    """A training round."""

    n: int
    newer: list[int]
    """Windows since the last round"""
    older: list[int]
    trained: bool = False
    ships: bool | None = None
    """The gate's verdict; None before it"""
    custom: PastClustered | None = None
    """The new speculator's acceptance length on the gate's windows"""
    outcome: str | None = None
    release: str | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.ships is False or self.outcome is not None

    @property
    def won(self) -> bool:
        """Whether its speculator serves, or did."""
        return self.outcome == PROMOTED


@dataclass
class AdaptState:
    """The journal, read."""

    position: dict[str, int] | None = None
    """None before the first start"""
    windows: dict[int, Window] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    spent: list[tuple[float, float]] = field(default_factory=list)
    """(Unix time, seconds of capture, training or replay that ended then)"""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "AdaptState":
        """The state after these entries."""
        state = cls()
        for entry in entries:
            state.add(entry)
        return state

    def add(self, entry: Entry) -> None:
        """Follows one entry. Events that are not known are ignored."""
        facts = entry.facts
        if seconds := facts.get("seconds"):
            self.spent.append((entry.at, float(seconds)))
        match entry.event:
            case "start":
                self.position = dict(facts["position"])
            case "window":
                self.position = {**(self.position or {}), **facts["position"]}
                self.windows[facts["window"]] = Window(facts["window"], facts["rows"], entry.at)
            case "watched":
                window = self.windows[facts["window"]]
                window.settled = window.usable = True
                window.release = facts["release"]
                window.acceptance = PastClustered(**facts["acceptance"])
            case "refused":
                self.windows[facts["window"]].settled = True
            case "round":
                self.rounds.append(Round(facts["round"], facts["newer"], facts["older"]))
            case "trained":
                self.rounds[-1].trained = True
            case "gated":
                self.rounds[-1].ships = facts["ships"]
                if acceptance := facts.get("acceptance"):
                    self.rounds[-1].custom = PastClustered(**acceptance["custom"])
            case "deployed":
                self.rounds[-1].outcome, self.rounds[-1].release = (
                    facts["outcome"],
                    facts["release"],
                )
            case "deleted":
                for number in facts["windows"]:
                    self.windows[number].deleted = True

    @property
    def usable(self) -> list[Window]:
        """Windows that were captured and measured."""
        return [window for window in self.windows.values() if window.usable]

    @property
    def newest(self) -> Window | None:
        """The window that was cut last."""
        return self.windows[max(self.windows)] if self.windows else None

    @property
    def unsettled(self) -> Window | None:
        """The window that is cut and not yet measured."""
        return next((each for each in self.windows.values() if not each.settled), None)

    @property
    def pending_round(self) -> Round | None:
        """The round that is under way."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].settled else None

    @property
    def last_trained(self) -> int:
        """The newest window that a round began with; 0 before the first round."""
        return max((max(each.newer) for each in self.rounds), default=0)

    @property
    def fresh(self) -> list[Window]:
        """Windows to train on or to measure a round with: since the last round began."""
        return [each for each in self.usable if each.n > self.last_trained and not each.deleted]

    @property
    def older(self) -> list[Window]:
        """Windows of earlier rounds that are kept."""
        return [each for each in self.usable if each.n <= self.last_trained and not each.deleted]

    @property
    def losses(self) -> int:
        """Settled rounds in a row, up to now, that did not ship."""
        count = 0
        for each in reversed(self.rounds):
            if each.won:
                break
            count += each.settled
        return count

    def seconds_since(self, time: float) -> float:
        """Seconds of work that ended after a Unix time."""
        return sum(seconds for at, seconds in self.spent if at > time)
