"""Error rates of canary decisions, and the requests they need, by simulation.

    python -m benchmarks.canary_decisions --trials 200

Simulated traffic (tests/live/simulated_traffic.py): sessions of about four requests, log-normal
lengths, a load that rises and falls 2.7-fold within the run and slows both replicas, half of the
sessions on the canary, whose replica is 6 % slower or faster than the stable one. The baseline has
`baseline_requests` canary requests. The judge looks 16 times, and the first verdict counts.
"""

import argparse

import numpy as np

from outrider.live.endpoint_file import CanaryPolicy
from tests.adapt.simulated_windows import Story, alarm
from tests.live.simulated_traffic import Traffic, first_verdict

POLICY = CanaryPolicy()
REPLICAS = (0.94, 1.06)
CASES = {
    "3 % slower": Traffic(speed=0.97),
    "equal": Traffic(),
    "5 % faster": Traffic(speed=1.05),
    "10 % faster": Traffic(speed=1.1),
    "25 % faster": Traffic(speed=1.25),
    "20 % slower": Traffic(speed=0.8),
    "30 % of its requests fail": Traffic(failures=(0.001, 0.3)),
}


def verdicts(
    random: np.random.Generator, traffic: Traffic, trials: int, requests: int, looks: int = 16
) -> list[tuple[str, int, int]]:
    """Action of each trial, and requests before it: all, the canary's."""
    return [
        first_verdict(
            traffic.draw(random, requests),
            traffic.draw(random, 2 * POLICY.baseline_requests, baseline=True),
            POLICY,
            looks,
        )
        for _ in range(trials)
    ]


def share_of(trials: list[tuple[str, int, int]], action: str) -> float:
    """Share of trials that end with `action`."""
    return sum(ending == action for ending, _, _ in trials) / len(trials)


def shares(random: np.random.Generator, trials: int) -> dict[str, float]:
    """Rates of wrong decisions, each in the worst setting."""

    def worst(speed: float, action: str) -> float:
        return max(
            share_of(verdicts(random, Traffic(speed, replica), trials, 2400, looks=8), action)
            for replica in REPLICAS
        )

    return {
        "canary_slow_promoted": worst(0.97, "promote"),
        "canary_equal_rolled_back": worst(1.0, "roll_back"),
        "adapt_false_rounds": max(
            false_rounds(random, trials, 0.03, sessions) for sessions in (30, 100)
        ),
    }


def false_rounds(random: np.random.Generator, trials: int, between: float, sessions: int) -> float:
    """Share of trials with a false alarm in 60 stationary windows."""
    stories = (Story(random, between, sessions) for _ in range(trials))
    return sum(alarm(story, 0.0, windows=60) is not None for story in stories) / trials


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2400)
    options = parser.parse_args()
    print("| release | replica | promoted | rolled back | undecided | requests | of the canary |")
    print("|---|---|---|---|---|---|---|")
    for name, traffic in CASES.items():
        for replica in REPLICAS:
            case = Traffic(traffic.speed, replica, traffic.failures)
            random = np.random.default_rng(7)
            endings = verdicts(random, case, options.trials, options.requests)
            parts = (share_of(endings, action) for action in ("promote", "roll_back", "wait"))
            decided = [counts for ending, *counts in endings if ending != "wait"]
            middle = np.median(decided, axis=0) if decided else [np.nan] * 2
            print(
                f"| {name} | {replica:g} | " + " | ".join(f"{share:.1%}" for share in parts),
                f"| {middle[0]:.0f} | {middle[1]:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
