"""A simulated endpoint: its traffic, its machine, and what an evaluation measures on them.

    world = World.drawn(random, setting, gain_U)
    block = timed_block(world=world, machine=machine, rows=rows, variant="base", size=1,
                        seconds=step_seconds(setting, 1))

Sessions have log-normal sizes, and the gains of sessions and users differ with long tails
(Student's t with 5 degrees of freedom); responses are cut at `max_tokens`; the gain may depend on
the position in the response and fall over time. Pairs of requests have the noise of a demo on a
shared machine (tests/eval/stats/machine_noise.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outrider.eval.bench.metrics import ReplayedSteps
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
    candidates: int = 1
    """Number of equal kinds, whose gains differ by session and user; the best on the validation
    part is evaluated"""

    def __str__(self) -> str:
        return self.label or f"{self.sessions} sessions"


def quiet(random: np.random.Generator, count: int) -> Array:
    """Noise of a machine of its own: pairs differ by 1 %."""
    return 0.01 * random.standard_normal(count)


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
    user_R: Array

    @property
    def users(self) -> list[str]:
        """Logged users of the responses."""
        return [f"u{user}" if self.setting.logged else "" for user in self.user_R]

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
        user_S = np.arange(sessions)
        if setting.users:
            traffic_U = 1 / np.arange(1, setting.users + 1)
            user_S = random.choice(setting.users, sessions, p=traffic_U / traffic_U.sum())
        tokens_R = setting.tokens * np.exp(0.5 * random.standard_normal(count))
        world = cls(
            setting=setting,
            tokens_R=np.maximum(tokens_R, 2.0),
            gain_R=np.ones(count),
            ease_R=np.exp(RESPONSE_NOISE * random.standard_normal(count)),
            session_R=session_R,
            time_R=time_S[session_R],
            user_R=user_S[session_R],
        )
        return world.with_gains(random, gain_U)

    def with_gains(self, random: np.random.Generator, gain_U: Array) -> "World":
        """The same traffic with other gains of custom by session, and these by user."""
        setting = self.setting
        sessions = int(self.session_R.max()) + 1
        gain_R = long_tailed(random, setting.session_noise, sessions)[self.session_R]
        if setting.users:
            gain_R = gain_R * gain_U[self.user_R]
        # The mean of the next span is one span after the mean of the held-out one, 0.5.
        return replace(self, gain_R=gain_R * np.exp(setting.trend * (1.5 - self.time_R)))

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
        "alternated": size == 1,
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
