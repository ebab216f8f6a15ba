"""How often a canary's decision is wrong, and how many requests it takes.

    python -m benchmarks.canary_decisions --trials 200

Simulated traffic (tests/live/simulated_traffic.py): sessions of about four requests, log-normal
lengths, a load that rises and falls 2.7-fold within the run and slows both, half of the sessions on
the canary. The decision is looked at 16 times from 100 requests on, and the first
verdict counts.
"""

import argparse

import numpy as np

from outrider.live.endpoint_file import CanaryPolicy
from tests.live.simulated_traffic import Traffic, first_verdict

CASES = {
    "3 % slower": Traffic(speed=0.97),
    "equal": Traffic(),
    "10 % faster": Traffic(speed=1.1),
    "25 % faster": Traffic(speed=1.25),
    "50 % faster": Traffic(speed=1.5),
    "25 % slower": Traffic(speed=0.75),
    "30 % of its requests fail": Traffic(failures=(0.001, 0.3)),
}


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2400)
    options = parser.parse_args()
    policy = CanaryPolicy()
    print("| canary | promoted | rolled back | undecided | requests | of the canary |")
    print("|---|---|---|---|---|---|")
    for name, traffic in CASES.items():
        found = [
            first_verdict(traffic.draw(np.random.default_rng([7, t]), options.requests), policy, 16)
            for t in range(options.trials)
        ]
        share = {
            action: sum(each[0] == action for each in found) / len(found)
            for action in ("promote", "roll_back", "wait")
        }
        decided = [each for each in found if each[0] != "wait"]
        middle = np.median([each[1:] for each in decided], axis=0) if decided else [np.nan] * 2
        print(
            f"| {name} | " + " | ".join(f"{each:.1%}" for each in share.values()),
            f"| {middle[0]:.0f} | {middle[1]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
