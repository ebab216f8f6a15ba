"""Simulated live traffic: sessions, drifting load, long-tailed lengths, the fair share."""

import dataclasses

import numpy as np

from outrider.live.judge import decide
from outrider.live.traffic import Observation
from outrider.serving.admin.replica import LiveRequest

BEGAN = 0.0
"""When the canary got its fair share."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What differs between canary and stable, and what is common to them."""

    speed: float = 1.0
    """Of the canary's release, relative to stable's."""
    replica: float = 1.0
    """Speed of the canary's replica, relative to stable's, with the same release."""
    failures: tuple[float, float] = (0.001, 0.001)
    """Probability that a request fails: stable, canary."""

    def draw(self, random, count, baseline=False):
        """`count` observations of stable and canary, in order of their end.

        Half of the sessions are the canary's, of about four requests. Tokens per step follow speed;
        they differ between sessions by 10 % and between requests by 15 %. With `baseline` both have
        the old release.
        """
        session = np.floor(random.beta(1, 3, count) * count / 4).astype(int)
        session += np.arange(count) // 4  # sessions come and go
        position = np.arange(count) / count
        canary = random.random(session.max() + 1)[session] < 0.5
        # Load drifts over the hour and hits both.
        hour = 8 * np.exp(0.5 * np.sin(2 * np.pi * position) + 0.1 * random.standard_normal(count))
        load = np.maximum(hour * np.exp(0.2 * random.standard_normal(count)), 1.0)
        tokens = np.ceil(np.exp(5 + random.standard_normal(count))).clip(1, 4096).astype(int)
        of_session = 0.1 * random.standard_normal(session.max() + 1)
        rate = np.where(canary & (not baseline), self.speed, 1.0) * np.exp(
            of_session[session] + 0.15 * random.standard_normal(count)
        )
        steps = np.maximum(np.round(tokens / (2.5 * rate).clip(1.05, 5)), 1).astype(int)
        step_s = 0.03 * (1 + 0.03 * load) * np.exp(0.05 * random.standard_normal(count))
        step_s /= np.where(canary, self.replica, 1.0)
        decode = (tokens - 1) / (2.5 * rate) * step_s
        ttft = 0.1 * np.exp(0.5 * random.standard_normal(count)) * (1 + 0.02 * load)
        ttft += (random.random(count) < 0.02) * random.exponential(10, count)
        failed = random.random(count) < np.array(self.failures)[canary.astype(int)]
        at = np.cumsum(random.exponential(1.0, count)) + 1000
        arms = [], []
        for i in range(count):
            live = LiveRequest(
                index=i,
                request_id=str(i),
                version=None,
                finished_at=float(at[i]),
                completion_tokens=int(tokens[i]),
                drafts=int(steps[i]),
                accepted=int(max(tokens[i] - steps[i], 0)),
                ttft_s=float(ttft[i]),
                decode_s=float(decode[i]),
                e2e_s=float(ttft[i] + decode[i]),
                failed=False,
            )
            arms[int(canary[i])].append(
                Observation(
                    session=str(session[i]),
                    started_at=live.finished_at - live.e2e_s,
                    latency_s=live.e2e_s,
                    failed=bool(failed[i]),
                    live=live,
                )
            )
        return arms


def first_verdict(arms, baseline, policy, looks):
    """The first verdict that is not to wait, and the requests until then: all, the canary's."""
    times = np.sort([request.live.finished_at for arm in arms for request in arm])
    for count in np.unique(np.geomspace(60, len(times), looks).astype(int)):
        last = times[count - 1]
        until = [[request for request in arm if request.live.finished_at <= last] for arm in arms]
        decision = decide(until, baseline, policy, BEGAN)
        if decision.action != "wait":
            break
    return decision.action, int(count), decision.figures["canary_requests"]
