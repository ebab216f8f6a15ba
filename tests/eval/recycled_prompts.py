"""Timed blocks that use a few sessions' prompts again and again."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.eval.bench.prompts import Prompt

STEPS = 60
"""Steps of a response."""


def recycled_blocks(
    random: np.random.Generator,
    sessions: int,
    spread: float,
    repeats: int = 8,
    concurrency: Sequence[int] = (1, 4),
    user: Callable[[int], int] | None = None,
) -> tuple[list[dict[str, Any]], list[Prompt]]:
    """Blocks of base and custom that accept alike on average, and their prompts.

    Custom's acceptance length differs from base's by a factor of each session (log-normal with that
    standard deviation and mean 1), and every response by 5 %. With `user` (of a session) it
    is each user's.
    """
    whose = [number if user is None else user(number) for number in range(sessions)]
    prompts_P = [
        Prompt(f"q{number}", f"s{number // 2}", f"u{whose[number // 2]}" if user else "", [], "")
        for number in range(2 * sessions)
    ]
    factor_G = np.exp(spread * random.standard_normal(sessions) - spread**2 / 2)
    factor_P = factor_G[whose].repeat(2)
    blocks: list[dict[str, Any]] = []
    supply = 0
    for repeat in range(repeats):
        for size in concurrency:
            count = max(5, 2 * size)
            prompts = [(supply + place) % len(prompts_P) for place in range(count)]
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
    return blocks, prompts_P
