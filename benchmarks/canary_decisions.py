"""Error rates of canary and adaptation decisions, by simulation.

    python -m benchmarks.canary_decisions --trials 1000

Simulated traffic (tests/live/simulated_traffic.py): sessions of about four requests, log-normal
lengths, a load that rises and falls 2.7-fold within the run and slows both replicas, half of the
sessions on the canary, whose replica is 6 % slower or faster than the stable one. A baseline has
`baseline_requests` canary requests. The judge looks eight times at 2,400 requests.

Simulated windows (tests/adapt/simulated_windows.py): the log ratio of custom over base differs by
3 % between windows, and by 10 % between the sessions of a window.
"""

import argparse
import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from outrider.live.endpoint_file import CanaryPolicy
from tests.adapt.simulated_windows import Ordinary, Story, alarm
from tests.live.simulated_traffic import Traffic, run_canary

POLICY = CanaryPolicy()
CASES = {
    "3 % slower, replica 6 % faster": Traffic(speed=0.97, replica=1.06),
    "3 % slower, 20 users": Traffic(speed=0.97, users=20),
    "3 % slower, 200 users": Traffic(speed=0.97, users=200),
    "3 % slower, replica 6 % faster after the baseline": Traffic(speed=0.97, later=1.06),
    "equal, replica 6 % slower": Traffic(replica=0.94),
    "equal, 20 users": Traffic(users=20),
    "equal, replica 3 % slower after the baseline": Traffic(later=0.97),
    "equal, replica 6 % slower after the baseline": Traffic(later=0.94),
    "equal, replica 10 % slower after the baseline": Traffic(later=0.9),
    "equal, 200 users, replica 6 % slower after it": Traffic(users=200, later=0.94),
    "5 % faster, replica 6 % slower": Traffic(speed=1.05, replica=0.94),
    "5 % faster, 200 users": Traffic(speed=1.05, users=200),
    "5 % faster, replica 6 % slower after the baseline": Traffic(speed=1.05, later=0.94),
    "10 % faster, replica 6 % slower": Traffic(speed=1.1, replica=0.94),
    "10 % faster, 20 users": Traffic(speed=1.1, users=20),
    "25 % faster, replica 6 % slower": Traffic(speed=1.25, replica=0.94),
    "10 % slower, replica 6 % faster": Traffic(speed=0.9, replica=1.06),
    "10 % slower, 20 users": Traffic(speed=0.9, users=20),
    "10 % slower, replica 6 % slower after the baseline": Traffic(speed=0.9, later=0.94),
    "20 % slower, replica 6 % faster": Traffic(speed=0.8, replica=1.06),
    "30 % of its requests fail": Traffic(failures=(0.001, 0.3)),
}
"""Releases, by name."""

ORDINARY = {
    "independent": Ordinary(),
    "independent, sd 5 %": Ordinary(between=0.05),
    "t(3)": Ordinary(long_tails=True),
    "t(3), sd 5 %": Ordinary(between=0.05, long_tails=True),
    "AR(1) 0.5": Ordinary(correlation=0.5),
    "AR(1) 0.8, sd 2 %": Ordinary(between=0.02, correlation=0.8),
    "AR(1) 0.8": Ordinary(correlation=0.8),
    "AR(1) 0.8, sd 5 %": Ordinary(between=0.05, correlation=0.8),
    "AR(1) 0.9": Ordinary(correlation=0.9),
    "AR(1) 0.9, sd 5 %": Ordinary(between=0.05, correlation=0.9),
    "weekends 3 % lower, 3 windows a day": Ordinary(weekend=0.03),
    "weekends 6 % lower, 1 window a day": Ordinary(weekend=0.06, windows_a_day=1),
    "weekends 6 % lower, 3 windows a day": Ordinary(weekend=0.06),
    "weekends 6 % lower, 8 windows a day": Ordinary(weekend=0.06, windows_a_day=8),
    "weekends 10 % lower, 1 window a day": Ordinary(weekend=0.1, windows_a_day=1),
    "weekends 10 % lower, 3 windows a day": Ordinary(weekend=0.1),
    "weekends 10 % lower, 8 windows a day": Ordinary(weekend=0.1, windows_a_day=8),
    "weekends 6 % lower, AR(1) 0.5": Ordinary(weekend=0.06, correlation=0.5),
}
"""Traffic without a lasting change, by name."""

SESSIONS = (30, 100)
"""Of a window."""


def endings(
    random: np.random.Generator, traffic: Traffic, trials: int
) -> list[tuple[str, list[list[object]], bool]]:
    """Action of each trial, its requests, and whether it had a second baseline."""
    return [run_canary(traffic, random, POLICY) for _ in range(trials)]


def share_of(trials: list[tuple[str, list[list[object]], bool]], action: str) -> float:
    """Share of trials that end with `action`."""
    return sum(ending == action for ending, _, _ in trials) / len(trials)


def false_rounds(random: np.random.Generator, trials: int, ordinary: Ordinary) -> float:
    """Share of trials with a false alarm in 60 windows, in the worse case of `SESSIONS`."""
    alarms = []
    for sessions in SESSIONS:
        windows = dataclasses.replace(ordinary, sessions=sessions)
        stories = (Story(random, ordinary=windows) for _ in range(trials))
        alarms.append(sum(alarm(story, 0.0, windows=60) is not None for story in stories))
    return max(alarms) / trials


def windows_to_find(
    random: np.random.Generator, trials: int, fall: float, gradual: int, ordinary: Ordinary
) -> list[float]:
    """Windows until a fall is found, of 30 after 10 without it; infinite if it is not."""
    found = []
    for _ in range(trials):
        story = Story(random, ordinary=ordinary)
        for _ in range(10):
            story.window()
        number = alarm(story, math.log(1 - fall), windows=30, gradual=gradual)
        found.append(math.inf if number is None else number)
    return found


def shares(random: np.random.Generator, trials: int) -> dict[str, float]:
    """Rates of decisions, each in the worst of its settings; a few minutes for 200 trials."""

    def rate(action: str, *names: str) -> list[float]:
        return [share_of(endings(random, CASES[name], trials), action) for name in names]

    found = windows_to_find(random, trials, fall=0.1, gradual=1, ordinary=Ordinary())
    slow = rate("promote", "3 % slower, replica 6 % faster", "3 % slower, 20 users")
    equal = rate("roll_back", "equal, replica 6 % slower", "equal, 20 users")
    (later,) = rate("roll_back", "equal, replica 6 % slower after the baseline")
    (rolled_back,) = rate("roll_back", "10 % slower, replica 6 % faster")
    (promoted,) = rate("promote", "5 % faster, replica 6 % slower")
    weekly = ORDINARY["weekends 6 % lower, 3 windows a day"]
    return {
        "canary_slow_promoted": max(slow),
        "canary_equal_rolled_back": max(equal),
        "canary_equal_slow_replica": later,
        "canary_slow_rolled_back": rolled_back,
        "canary_105_promoted": promoted,
        "adapt_false_rounds": false_rounds(random, trials, ORDINARY["independent"]),
        "adapt_false_rounds_ar1": false_rounds(random, trials, ORDINARY["AR(1) 0.8"]),
        "adapt_false_rounds_weekly": false_rounds(random, trials, weekly),
        "adapt_found_fall_10": sum(map(math.isfinite, found)) / trials,
        "adapt_windows_to_fall_10": float(np.median(found)),
    }


def print_canary(trials: int) -> None:
    """Prints what a canary test ends with, for each release."""
    print("| release | promoted | rolled back | undecided | second baseline | requests |")
    print("|---|---|---|---|---|---|")
    for name, traffic in CASES.items():
        results = endings(np.random.default_rng(7), traffic, trials)
        actions = [share_of(results, action) for action in ("promote", "roll_back", "wait")]
        again = sum(is_second for _, _, is_second in results) / trials
        decided = [sum(map(len, arms)) for ending, arms, _ in results if ending != "wait"]
        requests = f"{np.median(decided):.0f}" if decided else "-"
        rates = " | ".join(f"{share:.1%}" for share in [*actions, again])
        print(f"| {name} | {rates} | {requests} |", flush=True)


def print_adaptation(trials: int) -> None:
    """Prints false rounds in ordinary traffic, and how soon falls are found in it."""
    falls: Mapping[str, tuple[float, int]] = {
        "5 %": (0.05, 1),
        "10 %": (0.1, 1),
        "10 % over 10 windows": (0.1, 10),
        "20 %": (0.2, 1),
    }
    print("\n| windows | false round in 60 | " + " | ".join(f"-{fall}" for fall in falls) + " |")
    print("|---|---|" + "---|" * len(falls))
    for name, ordinary in ORDINARY.items():
        cells = [f"{false_rounds(np.random.default_rng(7), trials, ordinary):.1%}"]
        for fall, gradual in falls.values():
            random = np.random.default_rng(8)
            found = windows_to_find(
                random=random, trials=trials, fall=fall, gradual=gradual, ordinary=ordinary
            )
            middle = np.median(found)
            median = f"{middle:.0f}" if math.isfinite(middle) else "-"
            cells.append(f"{sum(map(math.isfinite, found)) / trials:.0%}, {median}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Prints Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--only", choices=("canary", "adaptation"))
    options = parser.parse_args()
    if options.only != "adaptation":
        print_canary(options.trials)
    if options.only != "canary":
        print_adaptation(options.trials)


if __name__ == "__main__":
    main()
