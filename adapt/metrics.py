"""Prometheus metrics of adaptation, from an endpoint's journal.

    journal = Journal(endpoint.journal, AdaptState(), listener=metrics_publisher(endpoint))

They are in a file of their own, `state_dir/adapt.prom`, because a deployment may write
`state_dir/metrics.prom` (live/metrics.py) at the same time.
"""

from collections import Counter
from collections.abc import Callable

from outrider.adapt.policy import newest_acceptance_drop
from outrider.adapt.state import AdaptState
from outrider.live.endpoint_file import Endpoint
from outrider.live.metrics import Measure, Values, counter, gauge, write_metrics

METRICS = "adapt.prom"
"""File name in `state_dir`."""


def metrics_publisher(endpoint: Endpoint) -> Callable[[AdaptState], None]:
    """Returns a journal's listener, which writes the metrics of each new state."""
    return lambda state: write_metrics(endpoint, METRICS, adaptation_measures(state))


def adaptation_measures(state: AdaptState) -> list[Measure]:
    """All metrics of adaptation."""
    newest = state.usable[-1] if state.usable else None
    length = newest.acceptance.value if newest and newest.acceptance else None
    ratio = newest.ratio.value if newest and newest.ratio else None
    fall = newest_acceptance_drop(state, newest.release, min_drop=0.0) if newest else None
    outcomes = Counter(ended.outcome or "lost" for ended in state.settled_rounds)
    rounds: Values = {(outcome,): float(count) for outcome, count in outcomes.items()}
    fall_ratio = fall.value if fall else None
    is_running = float(state.pending_round is not None)
    gpu_seconds = sum(seconds for _, seconds in state.spent)
    return [
        gauge("window_tokens_per_step", "Acceptance length, newest window", {(): length}),
        gauge(
            "window_over_base_ratio",
            "Acceptance length over the base's, newest window",
            {(): ratio},
        ),
        gauge(
            "window_fall_ratio",
            "Ratio to the base, last windows over earlier ones",
            {(): fall_ratio},
        ),
        counter("rounds", "Finished training rounds", rounds, labels=("outcome",)),
        gauge("round_running", "1 while a round is under way", {(): is_running}),
        counter("adapt_gpu_seconds", "GPU time of adaptation", {(): gpu_seconds}),
    ]
