"""Simulated live traffic: sessions, drifting load, long-tailed lengths, shares that rise."""

import dataclasses

import numpy as np

from outrider.live.judge import decide
from outrider.live.observations import Observation


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What differs between canary and stable, and what is common to them."""

    speed: float = 1.0
    """Of the canary, at equal load, relative to stable."""
    failures: tuple[float, float] = (0.001, 0.001)
    """Probability that a request fails: stable, canary."""
    tail: float = 1.0
    """Factor of the canary's waits: 2 % of the requests wait for a long time."""
    share: tuple[float, ...] = (0.05, 0.25)
    """Canary's share of the sessions in equal parts of the requests."""
    per_replica: bool = False
    """Whether the canary's load follows its share (two replicas) instead of being equal."""
    step_of_load: float = 0.03
    """Relative time that another request on the replica adds to a step."""
    session_noise: float = 0.1
    request_noise: float = 0.15

    def draw(self, random, requests, requests_a_session=4):
        """Stable and canary observations, in order of their end; tokens per step follow speed."""
        count = requests
        session = np.floor(random.beta(1, 3, count) * count / requests_a_session).astype(int)
        session += np.arange(count) // 4  # sessions come and go
        place = np.arange(count) / count
        share = np.array(self.share)[np.minimum((place * len(self.share)).astype(int), 99)]
        hashed = random.random(session.max() + 1)
        canary = hashed[session] < share
        # Load drifts over the hour and hits both.
        hour = 8 * np.exp(0.5 * np.sin(2 * np.pi * place) + 0.1 * random.standard_normal(count))
        weight = np.where(canary, share, 1 - share) * 2 if self.per_replica else 1.0
        load = np.maximum(hour * weight * np.exp(0.2 * random.standard_normal(count)), 1.0)
        tokens = np.ceil(np.exp(5 + random.standard_normal(count))).clip(1, 4096).astype(int)
        own = self.session_noise * random.standard_normal(session.max() + 1)
        rate = np.where(canary, self.speed, 1.0) * np.exp(
            own[session] + self.request_noise * random.standard_normal(count)
        )
        per_step = (2.5 * rate).clip(1.05, 5)
        steps = np.maximum(np.round(tokens / per_step), 1).astype(int)
        noise = np.exp(0.05 * random.standard_normal(count))
        step_s = 0.03 * (1 + self.step_of_load * load) * noise
        decode = (tokens - 1) / (2.5 * rate) * step_s
        waits = random.random(count) < 0.02
        ttft = 0.1 * np.exp(0.5 * random.standard_normal(count)) * (1 + 0.02 * load)
        ttft += waits * random.exponential(10, count) * np.where(canary, self.tail, 1.0)
        failed = random.random(count) < np.array(self.failures)[canary.astype(int)]
        at = np.cumsum(random.exponential(1.0, count)) + 1000
        arms = [], []
        for i in range(count):
            arms[int(canary[i])].append(
                Observation(
                    session=str(session[i]),
                    version="new" if canary[i] else "old",
                    finished_at=float(at[i]),
                    completion_tokens=int(tokens[i]),
                    drafts=int(steps[i]),
                    accepted=int(max(tokens[i] - steps[i], 0)),
                    ttft_s=float(ttft[i]),
                    decode_s=float(decode[i]),
                    latency_s=float(min(ttft[i] + decode[i], at[i] - 1)),
                    failed=bool(failed[i]),
                    load=float(load[i]),
                )
            )
        return arms


def until(arms, time):
    """The requests that have ended by then."""
    return [[each for each in arm if each.finished_at <= time] for arm in arms]


def first_verdict(arms, policy, looks):
    """The first verdict that is not to wait, and the requests until then: all, the canary's."""
    times = np.sort([each.finished_at for arm in arms for each in arm])
    for count in np.unique(np.geomspace(100, len(times), looks).astype(int)):
        decision = decide(*until(arms, times[count - 1]), policy)
        if decision.action != "wait":
            break
    return decision.action, int(count), decision.canary_requests
