"""Simulates a closed loop of requests from the steps that each needs and the cost of steps.

    seconds = closed_loop_seconds(
        steps=[63.6, 63.6, 35.6], concurrency=2, costs=step_times.of(3), prompt_tokens=200
    )

One step computes a request's prompt and delivers its first token; then the request decodes. A
prompt lengthens its step for every request in it. When a request ends, its successor arrives after
the engine has begun the next step and waits until that ends; a lone successor finds the engine idle
(the client's own milliseconds are ignored). A request's number of steps is whole; the remainder is
carried over to the next request.

With K by batch size a request needs another number of steps wherever the batch has another size: a
step of so many requests does the share of its work that it does with as many drafts throughout.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from outrider.serving.step_times import StepCosts


def closed_loop_seconds(
    steps: Sequence[float] | Sequence[Sequence[float]],
    concurrency: int,
    costs: StepCosts,
    prompt_tokens: float,
    column: Callable[[int], int] = lambda requests: 0,
) -> float:
    """Seconds from the first request's start to the last token.

    `steps` are those in which each request decodes, in sending order: its tokens after the first
    over its acceptance length. With K by batch size they are a row for each request, of which
    `column` names the entry for a batch of so many. `prompt_tokens` is the mean prompt's length.
    """
    table = [[own] if isinstance(own, int | float) else list(own) for own in steps]
    prompt_s = prompt_tokens * costs.prompt_token_s
    decoding: list[tuple[list[float], float]] = []  # each request's steps, and share left to do
    waiting = iter(table)
    arrived, on_the_way = min(concurrency, len(table)), 0
    sent, seconds, carried = arrived, 0.0, 0.0
    while decoding or arrived or on_the_way:
        if not decoding and not arrived:
            arrived, on_the_way = on_the_way, 0
        before = len(decoding) + arrived
        now = column(before)
        # For so many steps no request arrives or ends.
        left = [_whole(share * own[now]) for own, share in decoding]
        alike = 1 if arrived or on_the_way else min(left)
        seconds += alike * costs.seconds(before) + arrived * prompt_s
        going = []
        for (own, share), steps_left in zip(decoding, left, strict=True):
            share -= alike / own[now]
            if steps_left > alike:
                going.append((own, share))
            else:
                carried += share * own[now]
        decoding = going
        for own in itertools.islice(waiting, arrived):
            wanted = own[now] + carried
            if wanted > 0.5:
                decoding.append((own, wanted / own[now]))
                wanted = 0.0
            carried = wanted
        arrived, on_the_way = on_the_way, min(before - len(decoding), len(table) - sent)
        sent += on_the_way
    return seconds


def _whole(steps: float) -> int:
    """Steps until so many are done, to the nearest; at least one."""
    return max(math.ceil(steps - 0.5 - 1e-9), 1)
