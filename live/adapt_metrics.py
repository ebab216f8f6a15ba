"""Prometheus metrics of `adapt-speculator`, from the entries of its journal.

    follow = AdaptMetrics(metrics, recipe.adapt, gpus, read_journal(path))
    Journal(path, listener=follow)

What live/metrics.py counts are numbers and names; an entry's reason stays in the journal.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from outrider.live.adapt import FOLDER, JOURNAL
from outrider.live.adapt_policy import DAY_S, newest_fall
from outrider.live.adapt_state import AdaptState
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Entry, read_journal
from outrider.live.metrics import LiveMetrics, reporting
from outrider.pipeline.recipe.adapt_config import AdaptConfig

TEXTFILE = "adapt.prom"
"""In the endpoint's `state_dir`, next to the controller's."""


@contextlib.contextmanager
def adapt_metrics(
    endpoint: Endpoint, policy: AdaptConfig, gpus: int, port: int | None = None
) -> Iterator[Callable[[Entry], None]]:
    """The listener of the journal."""
    with reporting(endpoint, port, TEXTFILE) as metrics:
        journal = endpoint.state_dir / FOLDER / JOURNAL
        yield AdaptMetrics(metrics, policy, gpus, read_journal(journal))


class AdaptMetrics:
    """Called with every entry after it is on the disk."""

    def __init__(
        self,
        metrics: LiveMetrics,
        policy: AdaptConfig,
        gpus: int = 1,
        earlier: Iterable[Entry] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.metrics, self.policy, self.gpus, self.clock = metrics, policy, gpus, clock
        self.state = AdaptState.of(earlier)
        self._seconds = 0.0
        """Work since the round began that is under way"""
        self._unread = 0
        """Bytes of the log after the newest window"""

    def __call__(self, entry: Entry) -> None:
        """Counts one entry."""
        self.state.add(entry)
        facts, metrics = entry.facts, self.metrics
        seconds = float(facts.get("seconds", 0.0))
        self._seconds += seconds if self.state.rounds else 0.0
        match entry.event:
            case "window":
                self._unread = facts["unread_bytes"]
            case "watched":
                rows = self.state.windows[facts["window"]].rows
                sequences = facts["sequences"]
                metrics.log_read(sequences, max(rows - sequences, 0), self._unread)
                self._watched(facts["release"])
            case "refused":
                metrics.log_read(0, self.state.windows[facts["window"]].rows, self._unread)
            case "round":
                self._seconds = 0.0
                metrics.round_started()
            case "gated" if not facts["ships"]:
                metrics.round_finished(
                    "lost" if facts.get("acceptance") else "failed", self._gpu_seconds
                )
            case "deployed":
                metrics.round_finished(
                    "shipped" if self.state.rounds[-1].won else "lost", self._gpu_seconds
                )
        limit = self.policy.gpu_hours_per_day
        if seconds and limit is not None:
            spent = self.state.seconds_since(self.clock() - DAY_S) * self.gpus / 3600
            metrics.budget(max(limit - spent, 0.0))

    @property
    def _gpu_seconds(self) -> float:
        return self._seconds * self.gpus

    def _watched(self, release: str) -> None:
        """Acceptance of the newest window, and its fall since the release as a share of it."""
        newest = self.state.usable[-1].acceptance
        if newest is None:
            return
        fall = newest_fall(self.state, release, self.policy.min_drop)
        if fall is None:
            self.metrics.window(newest.value)
            return
        ratio = fall.change.value
        self.metrics.window(newest.value, newest.value / ratio, max(1 - ratio, 0.0))
