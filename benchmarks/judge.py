"""Error rates of evaluation verdicts, by simulation with the product's functions.

    python -m benchmarks.judge --quick          # within 10 minutes
    python -m benchmarks.judge --trials 4000

A trial simulates an endpoint's traffic, timed blocks of none, base and custom, and the exact replay
of held-out sessions, and applies an evaluation's rules: starts, looks, estimators, speed
requirements at every concurrency, and the acceptance check. The truth is production: tokens/s of
whole responses of tomorrow's traffic. Sessions have log-normal sizes, and the gains of sessions and
users differ with long tails (Student's t with 5 degrees of freedom); responses are cut at
`max_tokens`; the gain may depend on the position in the response and fall over time. Pairs of
requests have the noise of a demo on a shared machine (tests/eval/stats/machine_noise.py). The last
line of stdout is JSON, with each rate in the worst setting. Results: results/judge.md.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.canary_decisions import shares
from outrider.eval.bench.closed_loop import open_across_engines
from outrider.eval.bench.metrics import ReplayedSteps, SpeedRatios
from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.speed_checks import SUPERIOR, above, demands
from outrider.eval.stats.intervals import given_passed
from outrider.eval.stats.sequential import looks_of
from outrider.pipeline.recipe.recipe import EFFORTS
from tests.eval.stats.machine_noise import machine_noise

Array = np.ndarray

BASE_LENGTH, PREFILL = 2.5, 0.15
"""Acceptance length with the base, and prefill's share of the base's time for a mean response."""

RESPONSE_NOISE, SERVED_NOISE, SERVED_LENGTHS = 0.1, 0.04, 0.2
"""Standard deviations of logs: acceptance lengths of responses; those of the served response to the
same prompt; and its number of tokens."""

BLOCK_NOISE = 0.05
"""Standard deviation of the log time of a block with several concurrent requests."""

DEMO = {"measure": "until_decided", "repeats": 8, "requests": 5, "starts": 3}
STANDARD = {
    key: EFFORTS["standard"]["eval"][key] for key in ("measure", "repeats", "requests", "starts")
}


@dataclass(frozen=True)
class Setting:
    """The truth, and the conditions of measurement."""

    speed: float = 1.0
    """Custom / base tokens/s in production, at the main concurrency"""
    length: float = 1.1
    """Custom / base acceptance length in production, up to `turn` tokens"""
    over_none: float = 1.5
    """Custom / none tokens/s in production"""
    label: str = ""
    sizes: tuple[int, ...] = (1,)
    elsewhere: float | None = None
    """Custom / base tokens/s at the other concurrencies; None: `speed`"""
    effort: dict[str, Any] = field(default_factory=lambda: DEMO)
    sessions: int = 30
    session_noise: float = 0.1
    users: int = 0
    """Number of users with Zipf's traffic, whose gains differ by 10 %; 0: one per session"""
    logged: bool = True
    """Whether users are logged"""
    tokens: float = 200.0
    """Median length of a response; the standard deviation of its log is 0.5"""
    max_tokens: int = 400
    turn: int = 10_000
    late: float = 1.0
    """Factor on custom's acceptance length after `turn` tokens"""
    trend: float = 0.0
    """Fall of the log acceptance length per held-out span; the truth is one span later"""
    noise: Callable[[np.random.Generator, int], Array] = machine_noise
    block_noise: float = BLOCK_NOISE
    drift: float = 0.0
    """Standard deviation of the machine's log speed, with an autocorrelation of 0.97"""
    starts: float = 0.03
    """Standard deviation of the log speed between engine starts"""
    within: float = 0.0
    """The same for custom / base within one engine"""
    two_engines: bool = False
    replay_error: float = 1.0
    """Replayed / served acceptance-length ratio"""

    def __str__(self) -> str:
        return self.label or f"{self.sessions} sessions"


def quiet(random: np.random.Generator, count: int) -> Array:
    """Noise of a machine of its own: pairs differ by 1 %."""
    return 0.01 * random.standard_normal(count)


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


def long_tailed(random: np.random.Generator, spread: float, count: int) -> Array:
    """Factors whose logs have Student's t distribution; their inverses have the mean 1."""
    # A t distribution with 5 degrees has the variance 5 / 3.
    logs = spread * random.standard_t(5, count) / math.sqrt(5 / 3)
    # E exp(-x) of a normal distribution; the tails change it by less than 0.1 %.
    return np.exp(logs + spread**2 / 2)


@dataclass(frozen=True)
class World:
    """A simulated endpoint: held-out responses, and what a step costs."""

    setting: Setting
    tokens_R: Array
    gain_R: Array
    """Factors on custom's acceptance length"""
    ease_R: Array
    """Factors on everyone's acceptance length"""
    session_R: Array
    time_R: Array
    users: list[str]

    @classmethod
    def drawn(
        cls,
        random: np.random.Generator,
        setting: Setting,
        gain_U: Array,
        begin: float = 0.0,
        end: float = 1.0,
    ) -> "World":
        """Draws sessions of log-normal sizes, four responses on average, in this time.

        `gain_U` has the users' factors on custom's acceptance length.
        """
        sessions = math.ceil(setting.sessions * (end - begin))
        sizes_S = np.exp(0.7 * random.standard_normal(sessions) - 0.245)
        counts_S = np.maximum(np.round(4 * sizes_S), 1).astype(int)
        session_R = np.repeat(np.arange(sessions), counts_S)
        count = len(session_R)
        time_S = random.uniform(begin, end, sessions)
        gain_S = long_tailed(random, setting.session_noise, sessions)
        users = [f"u{session}" for session in session_R]
        if setting.users:
            traffic_U = 1 / np.arange(1, setting.users + 1)
            user_S = random.choice(setting.users, sessions, p=traffic_U / traffic_U.sum())
            gain_S = gain_S * gain_U[user_S]
            users = [f"u{user_S[session]}" for session in session_R]
        if not setting.logged:
            users = [""] * count
        # The mean of the next span is one span after the mean of the held-out one, 0.5.
        gain_S = gain_S * np.exp(setting.trend * (1.5 - time_S))
        tokens_R = setting.tokens * np.exp(0.5 * random.standard_normal(count))
        return cls(
            setting=setting,
            tokens_R=np.maximum(tokens_R, 2.0),
            gain_R=gain_S[session_R],
            ease_R=np.exp(RESPONSE_NOISE * random.standard_normal(count)),
            session_R=session_R,
            time_R=time_S[session_R],
            users=users,
        )

    def steps(self, variant: str, tokens_N: Array, rows: Array) -> Array:
        """Steps of responses of this many tokens to the prompts of `rows`."""
        if variant == "none":
            return tokens_N
        length_N = BASE_LENGTH * self.ease_R[rows]
        if variant == "base":
            return tokens_N / length_N
        setting = self.setting
        late_N = np.maximum(tokens_N - setting.turn, 0.0)
        weighted_N = tokens_N - late_N + late_N / setting.late
        return weighted_N / (length_N * setting.length * self.gain_R[rows])

    def replayed(self, prefix: str = "s") -> ReplayedSteps:
        """Exact replay of the responses, with its error."""
        rows = np.arange(len(self.tokens_R))
        cut_R = np.minimum(self.tokens_R, self.setting.max_tokens)
        error = {"none": 1.0, "base": 1.0, "custom": self.setting.replay_error}
        return ReplayedSteps(
            steps={name: self.steps(name, self.tokens_R, rows) / error[name] for name in error},
            sequence_ids=[f"q{row}" for row in rows],
            sessions=[f"{prefix}{session}" for session in self.session_R],
            users=self.users,
            cut_steps={name: self.steps(name, cut_R, rows) / error[name] for name in error},
            times=self.time_R.tolist(),
        )


def step_seconds(setting: Setting, size: int) -> tuple[float, dict[str, float]]:
    """Seconds of a prefill, and of a step of each variant, that give the true ratios.

    The base's step takes a second.
    """
    random = np.random.default_rng(0)
    tokens = setting.tokens * np.exp(0.5 * random.standard_normal(20_000))
    ease = np.exp(RESPONSE_NOISE * random.standard_normal(20_000))
    late = np.maximum(tokens - setting.turn, 0.0)
    base_steps = float((tokens / ease).mean()) / BASE_LENGTH
    weighted = (tokens - late + late / setting.late) / ease
    custom_steps = float(weighted.mean()) / (BASE_LENGTH * setting.length)
    prefill = PREFILL / (1 - PREFILL) * base_steps
    speed = setting.speed if size == setting.sizes[0] else setting.elsewhere or setting.speed
    custom = (prefill + base_steps) / speed
    none = custom * setting.over_none
    return prefill, {
        "base": 1.0,
        "custom": (custom - prefill) / custom_steps,
        "none": (none - prefill) / float(tokens.mean()),
    }


class Machine:
    """Noise of timed blocks: of requests or blocks, drift, and engine starts."""

    def __init__(self, random: np.random.Generator, setting: Setting) -> None:
        self.random = random
        self.setting = setting
        self.level = 0.0
        self.start()

    def start(self) -> None:
        """Starts all engines."""
        none, shared, other, within = self.random.standard_normal(4)
        by = self.setting.starts
        custom = by * (other if self.setting.two_engines else shared) + self.setting.within * within
        self.of_start = {"none": by * none, "base": by * shared, "custom": custom}

    def slowed(self, variant: str, size: int, count: int) -> Array:
        """Factors on the times of a block's requests."""
        setting = self.setting
        if size == 1:
            logs_N = setting.noise(self.random, count) / math.sqrt(2)
        else:
            block = setting.block_noise * self.random.standard_normal()
            logs_N = block + setting.block_noise * self.random.standard_normal(count)
        if setting.drift:
            innovation = setting.drift * math.sqrt(1 - 0.97**2)
            self.level = 0.97 * self.level + innovation * self.random.standard_normal()
        return np.exp(logs_N + self.level + self.of_start[variant])


def timed_block(
    *, world: World, machine: Machine, rows: Array, variant: str, size: int, seconds: Any
) -> dict[str, Any]:
    """A variant's responses to the prompts of `rows`, as bench/closed_loop.py records them."""
    random = machine.random
    count = len(rows)
    prefill, by_variant = seconds
    resampled = np.exp(SERVED_LENGTHS * random.standard_normal(count))
    tokens_N = np.minimum(np.maximum(world.tokens_R[rows] * resampled, 2), world.setting.max_tokens)
    deliveries_N = world.steps(variant, tokens_N, rows)
    if variant != "none":
        deliveries_N = deliveries_N * np.exp(SERVED_NOISE * random.standard_normal(count))
    slow_N = machine.slowed(variant, size, count)
    seconds_N = slow_N * (prefill + by_variant[variant] * deliveries_N)
    return {
        "variant": variant,
        "concurrency": size,
        "alternated": size == 1 and not world.setting.two_engines,
        "seconds": float(seconds_N.sum()) / size,
        "output_tokens": float(tokens_N.sum()) + count,
        "request_tokens": tokens_N + 1,
        "request_seconds": seconds_N,
        "request_shares": np.ones(count),
        "request_deliveries": deliveries_N,
        "ttft_ms": 1000 * prefill * slow_N,
        "tpot_ms": [],
        "itl_ms": [],
        "counters": {"drafts": 1, "accepted_tokens": 0, "generation_tokens": 1},
    }


def trial(random: np.random.Generator, setting: Setting, seconds: Any) -> Trial:
    """Measures until decided, then judges; `seconds` by concurrency (`step_seconds`)."""
    config = EvalConfig(
        concurrency=list(setting.sizes), max_tokens=setting.max_tokens, **setting.effort
    )
    gain_U = long_tailed(random, 0.1, setting.users)
    world = World.drawn(random, setting, gain_U)
    # The validation part has half as many sequences as the held-out part (recipe.EFFORTS).
    validation = World.drawn(random, setting, gain_U, begin=-0.5, end=0.0).replayed("v")
    replayed = replace(world.replayed(), earlier=validation)
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
    looks = looks_of(config)
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
            checks = demands(speeds.summarise(blocks), config.main, config.gate)
            lost = any(check.outcome == "failed" for check in checks if check.kind == SUPERIOR)
            if lost or "undecided" not in {check.outcome for check in checks}:
                break
    summary = speeds.summarise(blocks)
    outcomes = {check.outcome for check in demands(summary, config.main, config.gate)}
    acceptance = replayed.ratio("custom", "base", 0.95)
    assert acceptance is not None
    accepted = "undecided"
    if acceptance.low is not None and acceptance.high is not None:
        accepted = above(acceptance.low, acceptance.high, config.gate.min_acceptance_ratio)
    row = summary[str(config.main)].custom_over_base
    shipped = accepted == "passed" and outcomes == {"passed"}
    return Trial(
        shipped=shipped,
        refused=accepted == "failed" or "failed" in outcomes,
        ratio=row.value,
        low=row.low,
        high=row.high,
        corrected=given_passed(row.value, row.low, 1.0) if shipped else row.value,
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
    valid = [row for name, group in rows.items() if name != "replay" for row in group]
    standard = rows["better"][-2:]
    return {
        "trials": trials,
        "false_ship": max(row.shipped for row in rows["equal"]),
        "false_ship_cut": max(row.shipped for row in rows["cut"]),
        "false_ship_trend": rows["trend"][0].shipped,
        "false_ship_no_ids": max(row.shipped for row in rows["no_ids"]),
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
