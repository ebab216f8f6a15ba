"""Timed blocks that use a few sessions' prompts again and again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

STEPS = 60
"""Steps of a response."""


def recycled_blocks(
    random: np.random.Generator,
    sessions: int,
    spread: float,
    repeats: int = 8,
    concurrency: Sequence[int] = (1, 4),
) -> tuple[list[dict[str, Any]], list[str]]:
    """Blocks of base and custom that accept alike on average, and the sessions of their prompts.

    Custom's acceptance length differs from base's by a factor of each session (log-normal with that
    standard deviation and mean 1), and every response by 5 %.
    """
    names = [f"s{number // 2}" for number in range(2 * sessions)]
    factor_P = np.exp(spread * random.standard_normal(sessions) - spread**2 / 2).repeat(2)
    blocks: list[dict[str, Any]] = []
    supply = 0
    for repeat in range(repeats):
        for size in concurrency:
            count = max(5, 2 * size)
            prompts = [(supply + place) % len(names) for place in range(count)]
            supply += count
            for variant in ("base", "custom"):
                length_R = 2.5 * np.exp(0.05 * random.standard_normal(count))
                if variant == "custom":
                    length_R *= factor_P[prompts]
                later_R = np.round(STEPS * length_R).astype(int)
                accepted = int(later_R.sum()) - STEPS * count
                counters = {
                    "drafts": STEPS * count,
                    "draft_tokens": 4 * STEPS * count,
                    "accepted_tokens": accepted,
                    "accepted_per_position": [accepted, 0, 0, 0],
                    "generation_tokens": int(later_R.sum()) + count,
                }
                blocks.append(
                    {
                        "repeat": repeat,
                        "concurrency": size,
                        "variant": variant,
                        "prompts": prompts,
                        "request_tokens": (later_R + 1).tolist(),
                        "request_deliveries": [STEPS] * count,
                        "counters": counters,
                    }
                )
    return blocks, names
