"""Simulated timings whose true speed ratio is known, on a machine whose speed drifts."""

import numpy as np


def blocks_of(
    random: np.random.Generator, truth: float, blocks: int, noise: float, requests: int = 6
) -> list[np.ndarray]:
    """Blocks [requests, 4]. The ratio of each is off by its own factor, and requests differ by 5 %.

    The first variant is `truth` times as fast; `noise` is the factor's standard deviation (log).
    """
    found = []
    for _ in range(blocks):
        tokens = random.integers(60, 200, (2, requests)).astype(float)
        seconds = tokens / (100 * np.exp(0.05 * random.standard_normal((2, requests))))
        seconds[0] /= truth * np.exp(noise * random.standard_normal())
        found.append(np.stack([tokens[0], seconds[0], tokens[1], seconds[1]], axis=1))
    return found


def alternated_pairs(
    random: np.random.Generator, truth: float, pairs: int, lasting: float
) -> np.ndarray:
    """Pairs [pairs, 4] of alternated requests: a b, b a, a b, ...

    The machine's speed is an autoregressive process with a standard deviation of 15 % (log) that
    decays over `lasting` requests. Responses have 20 to 160 tokens, as unlike as a chat's.
    """
    kept = np.exp(-1 / lasting)
    shocks = random.standard_normal(2 * pairs)
    speeds, speed = [], random.standard_normal()
    for shock in shocks:
        speed = kept * speed + np.sqrt(1 - kept**2) * shock
        speeds.append(speed)
    tokens = random.integers(20, 160, 2 * pairs)
    noise = 0.15 * np.array(speeds) + 0.05 * random.standard_normal(2 * pairs)
    seconds = tokens / 100 * np.exp(noise)
    pair, first = np.arange(pairs), np.arange(pairs) % 2
    one, other = 2 * pair + first, 2 * pair + 1 - first
    seconds[one] /= truth
    return np.stack([tokens[one], seconds[one], tokens[other], seconds[other]], axis=1)
