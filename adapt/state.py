"""State of adaptation, from an endpoint's journal: windows, training rounds, GPU time.

    journal = Journal(endpoint.journal, AdaptState())
    journal.read().usable[-1].acceptance

Finished steps are recorded, so a killed process repeats at most one step:

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

A state is immutable: each entry gives a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from outrider.common.json_forms import Count
from outrider.eval.results.parts import ClusteredEstimate
from outrider.live.journal import Entry, facts_as
from outrider.live.state import PROMOTED


@dataclass(frozen=True)
class TrafficWindow:
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


@dataclass(frozen=True)
class Round:
    """A training round."""

    n: int
    newer: tuple[int, ...]
    """Windows since the previous round."""
    older: tuple[int, ...]
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


class _Cost(TypedDict, total=False):
    gpu_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Of the step that ended; missing in events that are not steps."""


@dataclass(frozen=True)
class AdaptState:
    """State of adaptation after all entries of an endpoint's journal."""

    position: Mapping[str, int] | None = None
    """Position at which to continue reading the log; None before the first start."""
    windows: Mapping[int, TrafficWindow] = field(default_factory=dict)
    """Windows by number, from 1."""
    rounds: tuple[Round, ...] = ()
    spent: tuple[tuple[float, float], ...] = ()
    """Pairs of Unix time and GPU-seconds of the capture, training or replay that ended then."""

    def add(self, entry: Entry) -> "AdaptState":
        """Returns the state after `entry`; events of deployments change nothing."""
        if entry.event not in _EVENTS:
            return self
        state = _EVENTS[entry.event](self, entry)
        gpu_seconds = facts_as(_Cost, entry).get("gpu_seconds")
        if not gpu_seconds:
            return state
        return replace(state, spent=(*state.spent, (entry.at, gpu_seconds)))

    @property
    def usable(self) -> list[TrafficWindow]:
        """Windows that were captured and measured."""
        return [window for window in self.windows.values() if window.acceptance]

    @property
    def pending_round(self) -> Round | None:
        """The round that is under way."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].settled else None

    @property
    def last_trained(self) -> int:
        """Highest window number in any round; 0 if there are no rounds."""
        return max((max(training_round.newer) for training_round in self.rounds), default=0)

    @property
    def fresh(self) -> list[TrafficWindow]:
        """Windows since the last round, for its gate or the next round."""
        return [window for window in self._remaining if window.n > self.last_trained]

    @property
    def older(self) -> list[TrafficWindow]:
        """The windows of all rounds so far, except deleted ones."""
        return [window for window in self._remaining if window.n <= self.last_trained]

    @property
    def _remaining(self) -> list[TrafficWindow]:
        return [window for window in self.usable if not window.deleted]

    @property
    def losses(self) -> int:
        """Number of settled rounds since the last promotion."""
        count = 0
        for training_round in reversed(self.rounds):
            if training_round.won:
                break
            if training_round.settled:
                count += 1
        return count

    @property
    def settled_rounds(self) -> list[Round]:
        """Rounds that have ended."""
        return [training_round for training_round in self.rounds if training_round.settled]

    def with_window(self, window: TrafficWindow) -> "AdaptState":
        """Returns the state with this window, new or in place of the one with its number."""
        return replace(self, windows={**self.windows, window.n: window})

    def with_last_round(self, changed: Round) -> "AdaptState":
        """Returns the state with another last round."""
        return replace(self, rounds=(*self.rounds[:-1], changed))


class _Start(TypedDict):
    position: dict[str, Count]


def _started(state: AdaptState, entry: Entry) -> AdaptState:
    return replace(state, position=facts_as(_Start, entry)["position"])


class _Window(TypedDict):
    window: Count
    rows: Count
    position: dict[str, Count]


def _cut(state: AdaptState, entry: Entry) -> AdaptState:
    facts = facts_as(_Window, entry)
    position = {**(state.position or {}), **facts["position"]}
    return replace(state, position=position).with_window(
        TrafficWindow(facts["window"], facts["rows"], entry.at)
    )


class _Watched(TypedDict):
    window: int
    release: str
    acceptance: ClusteredEstimate
    ratio: ClusteredEstimate | None


def _watched(state: AdaptState, entry: Entry) -> AdaptState:
    facts = facts_as(_Watched, entry)
    watched = replace(
        state.windows[facts["window"]],
        settled=True,
        release=facts["release"],
        acceptance=facts["acceptance"],
        ratio=facts["ratio"],
    )
    return state.with_window(watched)


class _RefusedWindow(TypedDict):
    window: int


def _refused(state: AdaptState, entry: Entry) -> AdaptState:
    number = facts_as(_RefusedWindow, entry)["window"]
    return state.with_window(replace(state.windows[number], settled=True))


class _Round(TypedDict):
    round: int
    newer: Annotated[list[Count], Field(min_length=1)]
    older: list[Count]


def _round_begun(state: AdaptState, entry: Entry) -> AdaptState:
    facts = facts_as(_Round, entry)
    begun = Round(facts["round"], newer=tuple(facts["newer"]), older=tuple(facts["older"]))
    return replace(state, rounds=(*state.rounds, begun))


def _trained(state: AdaptState, entry: Entry) -> AdaptState:
    return state.with_last_round(replace(state.rounds[-1], trained=True))


class _Gated(TypedDict):
    ships: bool


def _gated(state: AdaptState, entry: Entry) -> AdaptState:
    ships = facts_as(_Gated, entry)["ships"]
    return state.with_last_round(replace(state.rounds[-1], ships=ships))


class _Deployed(TypedDict):
    outcome: str | None


def _deployed(state: AdaptState, entry: Entry) -> AdaptState:
    outcome = facts_as(_Deployed, entry)["outcome"]
    return state.with_last_round(replace(state.rounds[-1], outcome=outcome))


class _Deleted(TypedDict):
    windows: list[int]


def _deleted(state: AdaptState, entry: Entry) -> AdaptState:
    for number in facts_as(_Deleted, entry)["windows"]:
        state = state.with_window(replace(state.windows[number], deleted=True))
    return state


_EVENTS: dict[str, Callable[[AdaptState, Entry], AdaptState]] = {
    "start": _started,
    "window": _cut,
    "watched": _watched,
    "refused_window": _refused,
    "round": _round_begun,
    "trained": _trained,
    "gated": _gated,
    "deployed": _deployed,
    "deleted": _deleted,
}
