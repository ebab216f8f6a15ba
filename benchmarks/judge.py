"""Error rates of evaluation verdicts, by simulation with the product's functions.

    python -m benchmarks.judge --quick          # within 10 minutes
    python -m benchmarks.judge --trials 4000

A trial simulates an endpoint's traffic, timed blocks of none, base and custom, and the exact replay
of held-out sessions, and applies an evaluation's rules: starts, looks, estimators, speed
requirements at every concurrency, and the acceptance check. The truth is production: tokens/s of
whole responses of tomorrow's traffic (benchmarks/simulated_endpoint.py). The last line of stdout is
JSON, with each rate in the worst setting. Results: results/judge.md.
"""

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.canary_decisions import shares
from benchmarks.simulated_endpoint import (
    STANDARD,
    Machine,
    Setting,
    World,
    long_tailed,
    quiet,
    step_seconds,
    timed_block,
)
from outrider.eval.bench.closed_loop import open_across_engines
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.prompts import Prompt
from outrider.eval.choose_kind import rank_kinds
from outrider.eval.config import EvalConfig
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.speed_checks import SUPERIOR, outcome_above, speed_demands
from outrider.eval.stats.intervals import correct_for_selection
from outrider.eval.stats.sequential import interim_looks
from outrider.speculators.kinds import trainable_names

STEP_NOISE = 0.01
"""Standard deviation of the log of a kind's step time as it is timed before the choice."""


@dataclass(frozen=True)
class Trial:
    """The outcome of a simulated evaluation."""

    shipped: bool
    refused: bool
    """Whether a check failed"""
    ratio: float
    low: float
    high: float
    corrected: float
    """Ratio corrected for selection by passing the gate"""
    repeats: int


def chosen_of(
    random: np.random.Generator, setting: Setting, seconds: tuple[float, dict[str, float]]
) -> tuple[World, World]:
    """Held-out and validation traffic of the kind that is best on validation.

    All kinds see the same traffic, and each has its own gains by session and user. They are ranked
    as in a run (eval/choose_kind.py).
    """
    gain_U = long_tailed(random, 0.1, setting.users)
    heldout = World.drawn(random, setting, gain_U)
    # The validation part has half as many sequences as the held-out part (recipe.EFFORTS).
    validation = World.drawn(random, setting, gain_U, begin=-0.5, end=0.0)
    kinds = trainable_names()[: setting.candidates]
    if len(kinds) == 1:
        return heldout, validation
    worlds = {}
    for kind in kinds:
        of_kind_U = long_tailed(random, 0.1, setting.users)
        worlds[kind] = (
            heldout.with_gains(random, of_kind_U),
            validation.with_gains(random, of_kind_U),
        )
    prefill, steps = seconds
    timed = np.exp(STEP_NOISE * random.standard_normal(len(kinds)))
    speeds = rank_kinds(
        {kind: replay_sums(before) for kind, (_, before) in worlds.items()},
        {kind: {1: steps["custom"] * noise} for kind, noise in zip(kinds, timed, strict=True)},
        setting.sizes[0],
        {kind: {"runner": "v2"} for kind in kinds},
        prefill=dict.fromkeys(kinds, prefill / float(validation.tokens_R.mean())),
    )
    return worlds[speeds[0].kind]


def replay_sums(world: World) -> ReplaySums:
    """Exact replay of custom at one number of drafts."""
    rows = np.arange(len(world.tokens_R))
    return ReplaySums(
        sequence_ids=[str(row) for row in rows],
        sessions=[str(session) for session in world.session_R],
        users=world.users,
        tokens_R=world.tokens_R,
        steps_RK=world.steps("custom", world.tokens_R, rows)[:, None],
        accepted_RKK=np.zeros((len(rows), 1, 1)),
        region_tokens_RG=np.zeros((len(rows), 0)),
        region_steps_RGK=np.zeros((len(rows), 0, 1)),
    )


def trial(random: np.random.Generator, setting: Setting, seconds: Any) -> Trial:
    """Measures until decided, then judges; `seconds` by concurrency (`step_seconds`)."""
    config = EvalConfig(
        concurrency=list(setting.sizes), max_tokens=setting.max_tokens, **setting.effort
    )
    world, before = chosen_of(random, setting, seconds[config.main])
    replayed = replace(world.replayed(), earlier=before.replayed("v"))
    order = random.permutation(len(world.tokens_R))
    prompts = [
        Prompt(
            sequence_id=replayed.sequence_ids[row],
            session=replayed.sessions[row],
            user=world.users[row],
            token_ids=[],
            text="",
        )
        for row in order
    ]
    speeds = SpeedRatios(config, prompts, main=config.main, replayed=replayed)
    machine = Machine(random, setting)
    looks = interim_looks(config)
    blocks: list[dict[str, Any]] = []
    supply = 0
    start = 0
    for repeat in range(config.repeats):
        if repeat and (setting.two_engines or open_across_engines(blocks, speeds)):
            machine.start()
            start += 1
        for size in setting.sizes:
            count = config.block_requests(size)
            indices = (supply + np.arange(count)) % len(prompts)
            supply += count
            for variant in ("none", "base", "custom"):
                one = timed_block(
                    world=world,
                    machine=machine,
                    rows=order[indices],
                    variant=variant,
                    size=size,
                    seconds=seconds[size],
                )
                shared = variant if setting.two_engines else "shared"
                engine = "none" if variant == "none" else shared
                position = {"repeat": repeat, "engine": engine, "start": start}
                blocks.append(one | position | {"prompts": indices.tolist()})
        if config.measure != "full" and repeat + 1 in looks.repeats:
            checks = speed_demands(speeds.summarise(blocks), config.main, config.gate)
            lost = any(check.outcome == "failed" for check in checks if check.kind == SUPERIOR)
            if lost or "undecided" not in {check.outcome for check in checks}:
                break
    summary = speeds.summarise(blocks)
    outcomes = {check.outcome for check in speed_demands(summary, config.main, config.gate)}
    acceptance = replayed.ratio("custom", "base", 0.95)
    assert acceptance is not None
    accepted = "undecided"
    if acceptance.low is not None and acceptance.high is not None:
        accepted = outcome_above(acceptance.low, acceptance.high, config.gate.min_acceptance_ratio)
    row = summary[str(config.main)].custom_over_base
    shipped = accepted == "passed" and outcomes == {"passed"}
    return Trial(
        shipped=shipped,
        refused=accepted == "failed" or "failed" in outcomes,
        ratio=row.value,
        low=row.low,
        high=row.high,
        corrected=correct_for_selection(row.value, row.low, 1.0) if shipped else row.value,
        repeats=repeat + 1,
    )


def trials_of(setting: Setting, trials: int, seed: int) -> list[Trial]:
    """Simulated evaluations of one setting."""
    random = np.random.default_rng(seed)
    seconds = {size: step_seconds(setting, size) for size in setting.sizes}
    return [trial(random, setting, seconds) for _ in range(trials)]


@dataclass(frozen=True)
class Row:
    """A setting and its simulated evaluations."""

    setting: Setting
    trials: list[Trial]

    @property
    def shipped(self) -> float:
        """Share that shipped."""
        return float(np.mean([one.shipped for one in self.trials]))

    @property
    def refused(self) -> float:
        """Share with a failed check."""
        return float(np.mean([one.refused for one in self.trials]))

    @property
    def bias(self) -> float:
        """Relative bias of the reported ratio."""
        return float(np.mean([one.ratio for one in self.trials])) / self.setting.speed - 1

    @property
    def corrected_bias(self) -> float:
        """Relative bias of the corrected ratio in the trials that shipped; NaN without any."""
        ratios = [one.corrected for one in self.trials if one.shipped]
        return float(np.mean(ratios)) / self.setting.speed - 1 if ratios else math.nan

    @property
    def coverage(self) -> float:
        """Share of intervals that contain the true ratio."""
        return float(np.mean([one.low <= self.setting.speed <= one.high for one in self.trials]))

    @property
    def width(self) -> float:
        """Median width of the interval over that of 1.96 standard deviations of the estimate."""
        widths = [math.log(one.high / one.low) for one in self.trials]
        spread = float(np.std([math.log(one.ratio) for one in self.trials]))
        return float(np.median(widths)) / (2 * 1.96 * spread)

    def __str__(self) -> str:
        """The row in Markdown."""
        repeats = np.mean([one.repeats for one in self.trials])
        corrected = self.corrected_bias
        of_shipped = "-" if math.isnan(corrected) else f"{corrected:+.1%}"
        return (
            f"| {self.setting.speed:g} | {self.setting} | {self.shipped:.1%} | {self.refused:.1%}"
            f" | {self.bias:+.1%} | {of_shipped} | {self.coverage:.1%} | {self.width:.2f}"
            f" | {repeats:.1f} |"
        )


CUT = Setting(length=1.3, tokens=600, turn=300, late=0.85, max_tokens=256)
"""The gain falls by 15 % after token 300, and responses are cut at 256."""

CUT_LONG = Setting(length=1.3, tokens=1200, turn=256, late=1.05 / 1.3, max_tokens=256)
"""A gain of 1.30 in the first 256 tokens, and of 1.05 later."""

NOISY = Setting(speed=1.1, over_none=1.1, sizes=(1, 4, 8), effort=STANDARD)
"""Custom 10 % faster than base and than none, at three concurrencies."""

QUIET = replace(NOISY, noise=quiet, block_noise=0.01, starts=0.01)

SETTINGS: dict[str, list[Setting]] = {
    "equal": [
        Setting(label="5 sessions", sessions=5),
        Setting(label="30 sessions"),
        Setting(label="200 sessions", sessions=200),
        Setting(label="8 logged users, 100 sessions", users=8, sessions=100),
        Setting(label="drift", drift=0.15),
        Setting(label="two engines", two_engines=True, starts=0.05),
        Setting(label="custom's speed differs by 3 % between starts", within=0.03),
        Setting(
            label="20 % faster at 1, 3 % slower at 4",
            speed=1.2,
            length=1.2,
            sizes=(1, 4),
            elsewhere=0.97,
        ),
    ],
    "cut": [
        replace(CUT, label="gain falls after token 300, cut at 256"),
        replace(CUT, label="the same, 3 % slower", speed=0.97),
        replace(CUT_LONG, label="gain 1.30, then 1.05, cut at 256", speed=0.995),
    ],
    "trend": [
        Setting(label="gain falls 5 % per span", trend=0.05),
        Setting(label="the same, 200 sessions", trend=0.05, sessions=200),
    ],
    "no_ids": [
        Setting(label="8 unknown users, 100 sessions", users=8, logged=False, sessions=100),
        Setting(label="the same, 3 % slower", speed=0.97, users=8, logged=False, sessions=100),
    ],
    "best_of_five": [
        Setting(label="best of five equal kinds", candidates=5),
        Setting(
            label="the same, 8 logged users, 100 sessions", users=8, sessions=100, candidates=5
        ),
    ],
    "better": [
        Setting(label="30 sessions", speed=1.1),
        Setting(label="200 sessions", speed=1.1, sessions=200),
        Setting(label="30 sessions", speed=1.25, length=1.25),
        Setting(
            label="8 unknown users, 100 sessions",
            speed=1.25,
            length=1.25,
            users=8,
            logged=False,
            sessions=100,
        ),
        replace(NOISY, label="`standard`, 1.1 of none, [1, 4, 8]"),
        replace(QUIET, label="the same, 1 % noise"),
    ],
    "slow": [
        replace(NOISY, label="`standard`, 0.88 of none", over_none=0.88),
        replace(QUIET, label="the same, 1 % noise", over_none=0.88),
    ],
    "replay": [
        Setting(label=f"replay off by {error - 1:.0%}", replay_error=error)
        for error in (1.02, 1.04, 1.1)
    ],
}
"""Settings by what is wrong about them."""


def simulated(trials: int, seed: int = 0) -> dict[str, list[Row]]:
    """Simulates every setting on all cores and prints a row for each."""
    print(f"\n{trials} trials\n")
    print("| speed | | shipped | failed | bias | corrected | coverage | width | repeats |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    names = [name for name, settings in SETTINGS.items() for _ in settings]
    settings = [one for group in SETTINGS.values() for one in group]
    rows: dict[str, list[Row]] = {}
    with ProcessPoolExecutor() as pool:
        count = len(settings)
        results = pool.map(trials_of, settings, [trials] * count, range(seed, seed + count))
        for name, setting, drawn in zip(names, settings, results, strict=True):
            row = Row(setting, drawn)
            rows.setdefault(name, []).append(row)
            print(row, flush=True)
    return rows


def judged(trials: int, seed: int = 0) -> dict[str, float]:
    """Prints the table; returns the rates of the last line."""
    rows = simulated(trials, seed)
    # Of five kinds, the one that suits these users best is chosen, so it gains more with them.
    biased = ("replay", "best_of_five")
    valid = [row for name, group in rows.items() if name not in biased for row in group]
    standard = rows["better"][-2:]
    return {
        "trials": trials,
        "false_ship": max(row.shipped for row in rows["equal"]),
        "false_ship_cut": max(row.shipped for row in rows["cut"]),
        "false_ship_trend": rows["trend"][0].shipped,
        "false_ship_no_ids": max(row.shipped for row in rows["no_ids"]),
        "false_ship_best_of_five": max(row.shipped for row in rows["best_of_five"]),
        "bias_worst": max((row.bias for row in valid), key=abs),
        "coverage_worst": min(row.coverage for row in valid),
        "width_over_oracle": max(row.width for row in valid),
        "power_110": rows["better"][0].shipped,
        "power_110_standard": standard[0].shipped,
        "power_110_quiet": standard[1].shipped,
        "power_125_no_ids": rows["better"][3].shipped,
        "slower_than_none_refused": min(row.refused for row in rows["slow"]),
        "corrected_bias": max((row.corrected_bias for row in rows["better"]), key=abs),
    }


def main() -> None:
    """Prints a Markdown table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4000, help="per setting; canary: 200")
    parser.add_argument("--quick", action="store_const", dest="trials", const=1000, help="1000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    rates = judged(options.trials, options.seed)
    rates |= shares(np.random.default_rng(options.seed), trials=200)
    print(f"\n{time.monotonic() - began:.0f} s\n")
    print(json.dumps({name: round(share, 4) for name, share in rates.items()}))


if __name__ == "__main__":
    main()
