"""Simulated live traffic: sessions, drifting load, long-tailed lengths, the fair share."""

import dataclasses

import numpy as np

from outrider.live.judge import decide_canary
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
    later: float = 1.0
    """Speed of the canary's replica after the first baseline, relative to before."""
    users: int = 0
    """Users whose gains differ by 10 %. Each one is routed to one replica; 0: each session is."""

    def draw(self, random, count, baseline=False, before=None, crowd=0):
        """`count` observations of stable and canary, in order of their end.

        Half of the sessions are the canary's, of about four requests. Tokens per step follow speed;
        they differ between sessions by 10 % and between requests by 15 %. With `baseline` both have
        the old release. `before`: whether it is before the swap; as `baseline` where it is None.
        `crowd`: seed of the users, who are the same in all periods of a trial.
        """
        before = baseline if before is None else before
        session = np.floor(random.beta(1, 3, count) * count / 4).astype(int)
        session += np.arange(count) // 4  # sessions come and go
        keys = session.max() + 1
        gain = np.zeros(keys)
        canary_keys = random.random(keys) < 0.5
        of_session = 0.1 * random.standard_normal(keys)
        # Later sessions are other ones.
        period = random.integers(2**32)
        names = [f"{period} {number}" for number in range(keys)]
        if self.users:
            people = np.random.default_rng(crowd)
            gains = 0.1 * people.standard_normal(self.users)
            habits = 0.1 * people.standard_normal(self.users)
            user = random.integers(self.users, size=keys)
            names = [f"user {number}" for number in user]
            canary_keys = (people.permutation(self.users) < self.users / 2)[user]
            gain = (gains - gains.mean())[user]
            of_session += habits[user]
        canary = canary_keys[session]
        position = np.arange(count) / count
        # Load drifts over the hour and hits both.
        hour = 8 * np.exp(0.5 * np.sin(2 * np.pi * position) + 0.1 * random.standard_normal(count))
        load = np.maximum(hour * np.exp(0.2 * random.standard_normal(count)), 1.0)
        tokens = np.ceil(np.exp(5 + random.standard_normal(count))).clip(1, 4096).astype(int)
        has_new = canary & (not baseline)
        rate = np.where(has_new, self.speed * np.exp(gain[session]), 1.0) * np.exp(
            of_session[session] + 0.15 * random.standard_normal(count)
        )
        steps = np.maximum(np.round(tokens / (2.5 * rate).clip(1.05, 5)), 1).astype(int)
        step_s = 0.03 * (1 + 0.03 * load) * np.exp(0.05 * random.standard_normal(count))
        step_s /= np.where(canary, self.replica * (1.0 if before else self.later), 1.0)
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
                    session=names[session[i]],
                    started_at=live.finished_at - live.e2e_s,
                    latency_s=live.e2e_s,
                    failed=bool(failed[i]),
                    live=live,
                )
            )
        return arms


def until(arms, count):
    """The first `count` requests of both arms, in the order of their end."""
    times = np.sort([request.live.finished_at for arm in arms for request in arm])
    last = times[count - 1]
    return [[request for request in arm if request.live.finished_at <= last] for arm in arms]


def run_canary(traffic, random, policy, requests=2400, looks=8):
    """A canary test: its action, `wait` if undecided, the requests it took, and its baselines.

    The steps of live/canary.py at the fair share. A second baseline is looked at four times.
    """
    crowd = int(random.integers(2**32))
    length = 2 * policy.baseline_requests
    baseline = traffic.draw(random, length, baseline=True, crowd=crowd)
    arms = traffic.draw(random, requests, crowd=crowd)
    is_second = False
    for count in np.unique(np.geomspace(60, requests, looks).astype(int)):
        test = until(arms, count)
        action = decide_canary(test, baseline, policy, BEGAN, is_second).action
        if action == "second_baseline":
            is_second = True
            second = traffic.draw(random, length, baseline=True, before=False, crowd=crowd)
            for length_so_far in np.geomspace(60, length, 4).astype(int):
                baseline = until(second, length_so_far)
                action = decide_canary(test, baseline, policy, BEGAN, is_second).action
                if action == "roll_back":
                    return action, test, is_second
        if action != "wait":
            break
    return action, test, is_second
