"""Simulated units whose true ratios are known, with the noise of a shared machine."""

import numpy as np

from outrider.eval.stats.speed_ratio import Units

BASE_LENGTH, TOKENS, LATER = 2.5, 160.0, 0.85
PAIR_NOISE = 0.07
STALLED = 1 / 8
SLOWEST = 1.1
"""Of pairs of requests in a demo on a shared machine: standard deviation of log ratios, share of
pairs that another process disturbed, and the largest log factor by which it did."""


def machine_noise(random: np.random.Generator, units: int, scale: float = 1.0) -> np.ndarray:
    """Log factors [units] between two variants, symmetric and with long tails."""
    stalled = random.random(units) < scale * STALLED
    sign = random.choice([-1.0, 1.0], units)
    return scale * PAIR_NOISE * random.standard_normal(units) + stalled * sign * random.uniform(
        0.2, SLOWEST, units
    )


def simulated_units(
    random: np.random.Generator,
    truth: float,
    units: int,
    length: float = 1.0,
    acceptance_noise: float = 0.03,
    scale: float = 1.0,
    noise: np.ndarray | None = None,
) -> Units:
    """Units in which the first variant is `truth` times as fast and accepts `length` times more.

    `acceptance_noise` is the standard deviation of a unit's log length ratio; `noise` replaces the
    machine's.
    """
    lengths_U2 = BASE_LENGTH * np.exp(
        acceptance_noise / np.sqrt(2) * random.standard_normal((units, 2))
    )
    lengths_U2[:, 0] *= length
    sums = []
    factors = np.exp(machine_noise(random, units, scale) if noise is None else noise)
    # The prefill is so long that what comes later has the share LATER of the base's expected time.
    prefill = TOKENS / BASE_LENGTH * (1 - LATER) / LATER
    # Seconds of a step of the first: its expected response takes 1 / truth of the second's time.
    step = ((TOKENS / BASE_LENGTH + prefill) / truth - prefill) / (TOKENS / BASE_LENGTH / length)
    for place, seconds, slow_U in ((0, step, factors), (1, 1.0, np.ones(units))):
        deliveries_U = TOKENS / lengths_U2[:, place]
        first_U = slow_U * prefill
        whole_U = first_U + slow_U * seconds * deliveries_U
        tokens_U = np.full(units, TOKENS + 1)
        columns = [tokens_U, whole_U, tokens_U - 1, deliveries_U, first_U, np.ones(units)]
        sums.append(np.stack(columns, axis=1))
    return Units(sums[0], sums[1], observations=units)


def replayed_steps(
    random: np.random.Generator, length: float, sessions: int, spread: float
) -> np.ndarray:
    """Steps [4 sessions, 2] of two variants on held-out responses; four of a session are alike.

    The log length ratio of a session has the standard deviation `spread`; pooled it is `length`.
    """
    own_S = np.exp(spread * random.standard_normal(sessions) - spread**2 / 2)
    steps_R = TOKENS / BASE_LENGTH * np.exp(0.1 * random.standard_normal(4 * sessions))
    return np.stack([steps_R / length / own_S.repeat(4), steps_R], axis=1)
