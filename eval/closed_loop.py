"""The speed of a closed loop of requests, foretold from acceptance length and timed steps: the engine's steps gone through one by one.

    seconds = closed_loop_seconds(tokens=[160, 160, 90], concurrency=2, acceptance_length=2.5, costs=step_times.of(3), prompt_tokens=200)

A request's prompt is computed in one step, which delivers its first token; each step after it delivers the acceptance length. A prompt makes
the step in which it is computed longer for everybody. When a request ends, its successor reaches an engine that has begun the next step,
and waits until that has ended; a lone one finds the engine at rest (the client's own turn, some milliseconds, is left out). The number of
steps of a request is whole; what rounding leaves is carried over to the next one.
"""

from collections.abc import Sequence

from outrider.serving.step_times import StepCosts


def closed_loop_seconds(
    tokens: Sequence[int], concurrency: int, acceptance_length: float, costs: StepCosts, prompt_tokens: float
) -> float:
    """Seconds from the first request's start to the last token. `tokens` of each response, in the order sent; `prompt_tokens` of a mean
    prompt; an acceptance length of 1 is the target alone."""
    prompt_s = prompt_tokens * costs.prompt_token_s
    decoding: list[int] = []  # steps that each still needs
    arrived, on_the_way = min(concurrency, len(tokens)), 0
    sent, seconds, carried = arrived, 0.0, 0.0
    answered = iter(tokens)
    while decoding or arrived or on_the_way:
        if not decoding and not arrived:
            arrived, on_the_way = on_the_way, 0
        seconds += costs.seconds(len(decoding) + arrived) + arrived * prompt_s
        before = len(decoding) + arrived
        decoding = [steps - 1 for steps in decoding if steps > 1]
        for length in (next(answered) for _ in range(arrived)):
            exact = max(length - 1, 0) / acceptance_length + carried
            carried = exact - round(exact)
            decoding += [round(exact)] * (round(exact) > 0)
        arrived, on_the_way = on_the_way, min(before - len(decoding), len(tokens) - sent)
        sent += on_the_way
    return seconds
