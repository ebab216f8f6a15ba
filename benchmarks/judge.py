"""How often the judge's rules are wrong, by simulation with the product's own functions.

    python -m benchmarks.judge --trials 2000

Each table has the rule before and the rule now, on the same draws. Results: results/judge.md.
"""

import argparse

import numpy as np

from outrider.eval.bench.counted import counted_acceptance, counted_passes
from outrider.eval.gate import LEAST_GREEDY_P
from outrider.eval.lossless.greedy_match import compare_greedy, excess
from outrider.eval.replay.draft_parity import Parity, complaint
from outrider.eval.results.parts import Drafters
from outrider.eval.results.verification import Greedy
from outrider.eval.stats.clusters import clustered
from outrider.eval.stats.speed_ratio import block_noise, speed_ratio
from outrider.serving.speculator import Speculator
from outrider.speculators.config import ParityConfig
from tests.eval.recycled_prompts import recycled_blocks
from tests.eval.stats.machine_noise import blocks_of

PROMPTS, NEAR_NATS = 24, 0.125


def table(*head: str) -> None:
    """Prints the head of a table in Markdown."""
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")


def row(*cells: str | float) -> None:
    """Prints a row; numbers are shares."""
    text = (f"{cell:.1%}" if isinstance(cell, float) else cell for cell in cells)
    print("| " + " | ".join(text) + " |")


def greedy(random: np.random.Generator, share: float, nats: float) -> Greedy:
    """Responses of which a share differs, by so many nats."""
    answered = [[1, 9] if differs else [1, 2] for differs in random.random(PROMPTS) < share]
    return compare_greedy([[1, 2]] * PROMPTS, answered, lambda *_: nats, NEAR_NATS)


def near_ties(random: np.random.Generator, trials: int) -> None:
    """Greedy responses: how often an engine is refused for near ties."""
    table(f"{PROMPTS} responses: differ at near ties, with speculation / control", "before", "now")
    for custom, control in (
        (0.05, 0.05),
        (0.3, 0.3),
        (0.9, 0.9),
        (0.3, 0.0),
        (0.5, 0.0),
        (0.7, 0.2),
        (1.0, 0.0),
    ):
        refused = 0
        for _ in range(trials):
            found, alone = greedy(random, custom, 0.1), greedy(random, control, 0.1)
            refused += excess(found, alone).p_value < LEAST_GREEDY_P
        row(f"{custom:.0%} / {control:.0%}", 0.0, refused / trials)


def noise(random: np.random.Generator, trials: int) -> None:
    """Speed: equal speeds, where the main blocks are noisier than two other kinds of 2 %."""
    table("blocks, their noise", "faster before", "faster now", "shown at 1.5 before", "now")
    for blocks, own_noise in ((4, 0.02), (4, 0.1), (4, 0.2), (8, 0.2)):
        shown = np.zeros(4)
        for _ in range(trials):
            others = [blocks_of(random, 1.0, blocks, 0.02) for _ in range(2)]
            for place, truth in enumerate((1.0, 1.5)):
                own = blocks_of(random, truth, blocks, own_noise)
                pooled = block_noise([own, *others])
                found = speed_ratio(own, pooled, samples=50)
                # The pooled margin alone, or the prompts' where those are wider.
                prompts = speed_ratio([np.concatenate(own)], None, samples=50)
                low = min(found.value / np.exp(pooled.margin(blocks)), prompts.low)
                shown[2 * place] += low > 1
                shown[2 * place + 1] += found.low > 1
        row(f"{blocks}, {own_noise:.0%}", *(shown / trials))


def sessions(random: np.random.Generator, trials: int) -> None:
    """Counted acceptance: no gain on average, sessions that differ by 10 %."""
    table("sessions", "more accepted before", "now")
    speculators = {"base": Speculator("mtp"), "custom": Speculator("ngram")}
    for count in (5, 10, 30):
        wrong = np.zeros(2)
        for _ in range(trials):
            blocks, names = recycled_blocks(random, count, 0.1, concurrency=(1,))
            passes = counted_passes(blocks, names)
            turns = np.concatenate(
                [
                    np.hstack([np.array(one.received[d]) - (1, 0) for d in ("base", "custom")])
                    for one in passes
                ]
            )
            before = clustered(
                turns,
                range(len(turns)),
                lambda s: (s[..., 2] / s[..., 3]) / (s[..., 0] / s[..., 1]),
            )
            now = counted_acceptance(passes, speculators, Drafters[int](base=4, custom=4)).ratio
            wrong += before.low > 1, now.low > 1
        row(str(count), *(wrong / trials))


def parity_of(drafts: int, agreement: float) -> Parity:
    """Draft parity at one depth."""
    return Parity(
        steps=drafts, agreement=agreement, near_ties=0.0, difference=0.01, per_depth=[agreement]
    )


def parity(random: np.random.Generator, trials: int) -> None:
    """Draft parity: how often an engine is refused, by its true share of other drafts."""
    shares, config = (0.004, 0.006, 0.008, 0.01, 0.02, 0.05), ParityConfig()
    table("drafts", "rule", *(f"{share:.1%} others" for share in shares))
    for pairs, drafts in ((1, 200), (1, 500), (1, 800), (2, 500), (2, 800)):
        before, now = [], []
        for share in shares:
            # In pairs: what differs at one depth differs at the next.
            agreement_S = 1 - pairs * random.binomial(drafts // pairs, share, trials) / drafts
            before.append(float(np.mean(1 - agreement_S > 1 - config.min_agreement + 1e-9)))
            rows = (parity_of(drafts, agreement) for agreement in agreement_S)
            now.append(float(np.mean([complaint(each, config) is not None for each in rows])))
        name = f"{drafts}{', in pairs' if pairs == 2 else ''}"
        row(name, "before", *before)
        row("", "now", *now)


def main() -> None:
    """Prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for part in (near_ties, noise, sessions, parity):
        part(np.random.default_rng(options.seed), options.trials)


if __name__ == "__main__":
    main()
