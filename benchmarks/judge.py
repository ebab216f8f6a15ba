"""Error rates of evaluation verdicts, by simulation with the product's functions.

    python -m benchmarks.judge --quick          # within 10 minutes
    python -m benchmarks.judge --trials 4000

A trial simulates timed blocks of none, base and custom, and the exact replay of held-out sessions,
and applies an evaluation's rules: looks, estimators, speed requirements at every concurrency, and
the acceptance check. Pairs of requests have the noise of a demo on a shared machine
(tests/eval/stats/machine_noise.py) or twice that. Kinds and K are chosen on validation traffic,
which is independent, so they are not simulated. The last line of stdout is JSON, with each rate in
the worst setting. Results: results/judge.md.
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
from outrider.eval.bench.metrics import ReplayedSteps, SpeedRatios
from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.speed_checks import SUPERIOR, above, demands
from outrider.eval.stats.intervals import given_passed
from outrider.eval.stats.sequential import looks_of
from tests.eval.stats.machine_noise import machine_noise

TOKENS, BASE_LENGTH, PREFILL = 160, 2.5, 0.15
"""A response's tokens, acceptance length with the base, and prefill share of its time."""

REQUESTS_A_SESSION, REQUEST_NOISE, BLOCK_NOISE = 4, 0.04, 0.05
"""Held-out responses per session; standard deviations of the log of a response's acceptance length
and of a block's time if it has several concurrent requests."""


@dataclass(frozen=True)
class Setting:
    """The true ratios, and the conditions of measurement."""

    speed: float
    """Custom / base tokens/s at the main concurrency"""
    length: float
    """Custom / base acceptance length"""
    sessions: int = 30
    scale: float = 1.0
    """Factor on the machine's noise"""
    elsewhere: float | None = None
    """Custom / base tokens/s at concurrency 4; None: only concurrency 1 is measured"""
    over_none: float = 1.5
    """Custom / none tokens/s"""
    starts: float = 0.0
    """Standard deviation of speed between engine starts"""
    two_engines: bool = False
    session_noise: float = 0.1
    users: int = 0
    """Number of users, with very unequal traffic and gains 10 % apart; 0: not logged"""
    replay_error: float = 1.0
    """Replayed / served acceptance-length ratio"""
    repeats: int = 8
    """With 5 requests each, as in the demo"""

    def __str__(self) -> str:
        words = {
            f"{self.sessions} sessions, noise x {self.scale:g}": True,
            f"{self.elsewhere:g} at 4 requests" if self.elsewhere else "": bool(self.elsewhere),
            f"{self.over_none:g} of none": self.over_none < 1,
            "two engines": self.two_engines,
            f"starts differ by {self.starts:.0%}": bool(self.starts),
            f"sessions differ by {self.session_noise:.0%}": self.session_noise != 0.1,
            f"{self.users} unequal users": bool(self.users),
            f"{self.repeats} repeats": self.repeats != 8,
            f"replay off by {self.replay_error - 1:.0%}": self.replay_error != 1,
        }
        return ", ".join(word for word, said in words.items() if said)


@dataclass(frozen=True)
class Trial:
    """The outcome of a simulated evaluation."""

    shipped: bool
    ratio: float
    corrected: float
    """Ratio corrected for selection by passing the gate"""
    repeats: int
    estimator: str


def block(
    random: np.random.Generator, setting: Setting, variant: str, size: int, factors: np.ndarray
) -> dict[str, Any]:
    """A variant's requests; `factors` scale their acceptance lengths and times."""
    speed = setting.speed if size == 1 else setting.elsewhere or 1.0
    length = {"none": 1.0, "base": BASE_LENGTH, "custom": BASE_LENGTH * setting.length}[variant]
    usual = {"none": speed / setting.over_none, "base": 1.0, "custom": speed}[variant]
    usual_deliveries = TOKENS / length
    step = (1 / usual - PREFILL) / usual_deliveries
    lengths_R, slow_R = factors
    if variant != "none":
        lengths_R = lengths_R * np.exp(REQUEST_NOISE * random.standard_normal(len(slow_R)))
    deliveries_R = TOKENS / (length * lengths_R)
    seconds_R = slow_R * (PREFILL + step * deliveries_R)
    count = len(slow_R)
    return {
        "variant": variant,
        "concurrency": size,
        "alternated": size == 1 and not setting.two_engines,
        "seconds": float(seconds_R.sum()) / size,
        "output_tokens": count * (TOKENS + 1),
        "request_tokens": [TOKENS + 1] * count,
        "request_seconds": seconds_R,
        "request_shares": [1.0] * count,
        "request_deliveries": deliveries_R,
        "ttft_ms": 1000 * PREFILL * slow_R,
        "tpot_ms": [],
        "itl_ms": [],
        "counters": {"drafts": 1, "accepted_tokens": 0, "generation_tokens": 1},
    }


def trial(random: np.random.Generator, setting: Setting) -> Trial:
    """Measures until decided, then judges."""
    sizes = [1] if setting.elsewhere is None else [1, 4]
    config = EvalConfig(
        concurrency=sizes, requests=5, repeats=setting.repeats, measure="until_decided"
    )
    spread = setting.session_noise
    ratio_S = np.exp(spread * random.standard_normal(setting.sessions) + spread**2 / 2)
    session_R = np.arange(setting.sessions).repeat(REQUESTS_A_SESSION)
    users = [""] * len(session_R)
    if setting.users:
        traffic_U, own_U = np.exp(random.standard_normal((2, setting.users)) * [[1.0], [0.1]])
        user_S = random.choice(setting.users, setting.sessions, p=traffic_U / traffic_U.sum())
        ratio_S *= own_U[user_S]
        users = [f"u{user_S[session]}" for session in session_R]
    steps_R = TOKENS / BASE_LENGTH * np.exp(0.1 * random.standard_normal(len(session_R)))
    steps = {
        "none": steps_R * BASE_LENGTH,
        "base": steps_R,
        "custom": steps_R / setting.length / ratio_S[session_R] / setting.replay_error,
    }
    names = [f"s{number}" for number in session_R]
    ids = [f"q{row}" for row in range(len(names))]
    replayed = ReplayedSteps(steps, ids, names, users)
    order = random.permutation(len(names))
    prompts = [
        Prompt(sequence_id=ids[row], session=names[row], user=users[row], token_ids=[], text="")
        for row in order
    ]
    speeds = SpeedRatios(config, prompts, main=1, replayed=replayed)
    acceptance = replayed.ratio("custom", "base", 0.95)
    starts = {name: 1.0 for name in ("none", "base", "custom")}
    blocks: list[dict[str, Any]] = []
    supply = 0
    looks = looks_of(config)
    for repeat in range(setting.repeats):
        if repeat == 0 or setting.two_engines:
            drawn = np.exp(setting.starts * random.standard_normal(3))
            starts = dict(zip(starts, drawn, strict=True))
            if not setting.two_engines:
                starts["custom"] = starts["base"]
        for size in sizes:
            count = config.block_requests(size)
            rows = [(supply + offset) % len(prompts) for offset in range(count)]
            supply += count
            for variant in starts:
                if size == 1:
                    slow_R = np.exp(machine_noise(random, count, setting.scale) / np.sqrt(2))
                else:
                    noise = BLOCK_NOISE * setting.scale * random.standard_normal()
                    slow_R = np.exp(noise + 0.05 * random.standard_normal(count))
                custom = variant == "custom"
                lengths_R = ratio_S[session_R[order[rows]]] if custom else np.ones(count)
                factors = np.array([lengths_R, slow_R * starts[variant]])
                engine = "none" if variant == "none" else "shared"
                position = {
                    "repeat": repeat,
                    "prompts": rows,
                    "engine": variant if setting.two_engines else engine,
                    "start": repeat if setting.two_engines else 0,
                }
                blocks.append(
                    block(
                        random=random, setting=setting, variant=variant, size=size, factors=factors
                    )
                    | position
                )
        if repeat + 1 in looks.repeats:
            summary = speeds.summarise(blocks)
            checks = demands(summary, 1, config.gate)
            outcomes = {check.outcome for check in checks}
            lost = any(check.outcome == "failed" for check in checks if check.kind == SUPERIOR)
            if lost or "undecided" not in outcomes or repeat + 1 == setting.repeats:
                break
    accepted = acceptance is not None and acceptance.low and acceptance.high
    accepted = accepted and above(acceptance.low, acceptance.high, 1.0) == "passed"
    row = summary["1"].custom_over_base
    shipped = bool(accepted) and outcomes == {"passed"}
    corrected = given_passed(row.value, row.low, 1.0) if shipped else row.value
    return Trial(
        shipped=shipped,
        ratio=row.value,
        corrected=corrected,
        repeats=repeat + 1,
        estimator=row.estimator,
    )


def trials_of(setting: Setting, trials: int, seed: int) -> list[Trial]:
    """Simulated evaluations of one setting."""
    random = np.random.default_rng(seed)
    return [trial(random, setting) for _ in range(trials)]


def table(title: str, settings: list[Setting], trials: int, seed: int) -> list[list[Trial]]:
    """Simulates every setting on all cores and prints a row for each."""
    print(f"\n{title} {trials} trials.\n")
    print("| speed | acceptance | | shipped | reported / true | if shipped | corrected | repeats |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    by_setting: list[list[Trial]] = []
    with ProcessPoolExecutor() as pool:
        count = len(settings)
        results = pool.map(trials_of, settings, [trials] * count, [seed] * count)
        for setting, simulated in zip(settings, results, strict=True):
            by_setting.append(simulated)
            print(table_row(setting, simulated), flush=True)
    return by_setting


def table_row(setting: Setting, simulated: list[Trial]) -> str:
    """A Markdown row; `-` for a bias without shipped trials."""
    shipped = [trial for trial in simulated if trial.shipped]
    biases = [bias(simulated, "ratio", setting)]
    biases += [bias(shipped, ratio, setting) for ratio in ("ratio", "corrected")]
    columns = " | ".join("-" if math.isnan(value) else f"{value:+.1%}" for value in biases)
    repeats = np.mean([trial.repeats for trial in simulated])
    share = len(shipped) / len(simulated)
    return (
        f"| {setting.speed:g} | {setting.length:g} | {setting} | {share:.1%}"
        f" | {columns} | {repeats:.1f} of {setting.repeats} |"
    )


def bias(trials: list[Trial], what: str, setting: Setting) -> float:
    """Relative bias of the reported or corrected ratio; NaN without trials."""
    values = [getattr(trial, what) for trial in trials]
    return float(np.mean(values)) / setting.speed - 1 if values else math.nan


def worst(by_setting: list[list[Trial]]) -> float:
    """The largest share of shipped trials over the settings."""
    return max(float(np.mean([trial.shipped for trial in trials])) for trials in by_setting)


def judged(trials: int, seed: int = 0) -> dict[str, float]:
    """Prints all tables; returns the rates of the last line."""
    equal = Setting(1.0, 1.0)
    two = replace(equal, length=1.2, two_engines=True)
    every = [
        replace(equal, length=length, sessions=sessions, scale=scale)
        for length, scale in ((1.0, 1.0), (1.1, 1.0), (1.1, 2.0))
        for sessions in (5, 10, 30)
    ]
    every += [replace(two, sessions=count, starts=by) for count in (10, 30) for by in (0.05, 0.1)]
    every += [replace(equal, length=1.1, users=users) for users in (3, 5, 8)]
    every += [replace(equal, length=1.2, elsewhere=1.0), replace(equal, length=1.1, repeats=32)]
    false = table("Custom is as fast as base.", every, trials, seed)
    better = [replace(equal, speed=1.1, length=1.1, scale=scale) for scale in (1.0, 2.0)]
    better += [
        replace(better[0], sessions=sessions, session_noise=noise)
        for sessions, noise in ((10, 0.1), (30, 0.2))
    ]
    better.append(replace(better[0], elsewhere=1.1))
    better += [replace(better[0], two_engines=True, starts=starts) for starts in (0.02, 0.05)]
    faster = table("Custom is 10 % faster.", better, trials, seed + 1)
    slow = [
        Setting(1.2, 1.2, elsewhere=0.9, scale=scale, session_noise=0.03) for scale in (1.0, 2.0)
    ]
    slow += [Setting(1.2, 1.2, over_none=0.9, starts=starts) for starts in (0.0, 0.05, 0.1)]
    slower = table("Custom is 10 % slower at 4 requests, or than none.", slow, trials, seed + 2)
    wrong = [replace(equal, length=1.1, replay_error=error) for error in (1.02, 1.04, 1.1)]
    table("Replay predicts more than is served (not in the last line).", wrong, trials, seed + 3)
    biases = []
    for setting, simulated in zip(better, faster, strict=True):
        shipped = [trial for trial in simulated if trial.shipped]
        biases.append(abs(bias(simulated, "ratio", setting)))
        biases.append(abs(bias(shipped, "corrected", setting)))
    return {
        "false_ship": worst(false),
        "power_110": worst(faster[:1]),
        "slower_shipped": worst(slower),
        "bias": max(biases),
    }


def main() -> None:
    """Prints Markdown tables, then one line of JSON."""
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
