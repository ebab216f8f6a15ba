"""Simulates a closed loop of requests from the steps that each needs and the cost of steps.

    seconds = closed_loop_seconds(
        steps=[63.6, 63.6, 35.6], concurrency=2, costs=step_times.of(3), prompt_tokens=200
    )

One step computes a request's prompt and delivers its first token; then the request decodes. A
prompt lengthens its step for every request in it. When a request ends, its successor arrives after
the engine has begun the next step and waits until that ends; a lone successor finds the engine idle
(the client's own milliseconds are ignored). A request's number of steps is whole; the remainder is
carried over to the next request.
"""

import itertools
import math
from collections.abc import Sequence

from outrider.serving.step_times import StepCosts


def closed_loop_seconds(
    steps: Sequence[float], concurrency: int, costs: StepCosts, prompt_tokens: float
) -> float:
    """Seconds from the first request's start to the last token.

    `steps` are those in which each request decodes, in sending order: its tokens after the first
    over its acceptance length. `prompt_tokens` is the mean prompt's length.
    """
    prompt_s = prompt_tokens * costs.prompt_token_s
    decoding: list[float] = []  # steps left of each request
    waiting = iter(steps)
    arrived, on_the_way = min(concurrency, len(steps)), 0
    sent, seconds, carried = arrived, 0.0, 0.0
    while decoding or arrived or on_the_way:
        if not decoding and not arrived:
            arrived, on_the_way = on_the_way, 0
        before = len(decoding) + arrived
        # For so many steps no request arrives or ends.
        alike = 1 if arrived or on_the_way else min(map(_whole, decoding))
        seconds += alike * costs.seconds(before) + arrived * prompt_s
        carried += sum(left - alike for left in decoding if _whole(left) <= alike)
        decoding = [left - alike for left in decoding if _whole(left) > alike]
        for own in itertools.islice(waiting, arrived):
            wanted = own + carried
            if wanted > 0.5:
                decoding.append(wanted)
                wanted = 0.0
            carried = wanted
        arrived, on_the_way = on_the_way, min(before - len(decoding), len(steps) - sent)
        sent += on_the_way
    return seconds


def _whole(steps: float) -> int:
    """Steps until so many are done, to the nearest; at least one."""
    return max(math.ceil(steps - 0.5 - 1e-9), 1)
