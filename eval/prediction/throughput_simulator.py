"""The speed of a closed loop of requests, foretold from the steps that each needs and what steps cost: the engine's steps gone through.

    seconds = closed_loop_seconds(steps=[63.6, 63.6, 35.6], concurrency=2, costs=step_times.of(3), prompt_tokens=200)

A request's prompt is computed in one step, which delivers its first token; then it decodes. A prompt makes the step in which it is computed
longer for everybody. When a request ends, its successor reaches an engine that has begun the next step, and waits until that has ended; a lone
one finds the engine at rest (the client's own turn, some milliseconds, is left out). The number of steps of a request is whole; what rounding
leaves is carried over to the next one.
"""

from collections.abc import Sequence

from outrider.serving.step_times import StepCosts


def closed_loop_seconds(
    steps: Sequence[float], concurrency: int, costs: StepCosts, prompt_tokens: float
) -> float:
    """Seconds from the first request's start to the last token. `steps` in which each request decodes, in the order sent: its tokens after the
    first over its acceptance length; `prompt_tokens` of a mean prompt."""
    prompt_s = prompt_tokens * costs.prompt_token_s
    decoding: list[int] = []  # steps that each still needs
    arrived, on_the_way = min(concurrency, len(steps)), 0
    sent, seconds, carried = arrived, 0.0, 0.0
    wanted = iter(steps)
    while decoding or arrived or on_the_way:
        if not decoding and not arrived:
            arrived, on_the_way = on_the_way, 0
        alike = (
            1 if arrived or on_the_way else min(decoding)
        )  # nobody comes or goes for so many steps
        before = len(decoding) + arrived
        seconds += alike * costs.seconds(before) + arrived * prompt_s
        decoding = [left - alike for left in decoding if left > alike]
        for own in (next(wanted) for _ in range(arrived)):
            whole = round(own + carried)
            carried += own - whole
            decoding += [whole] * (whole > 0)
        arrived, on_the_way = on_the_way, min(before - len(decoding), len(steps) - sent)
        sent += on_the_way
    return seconds
