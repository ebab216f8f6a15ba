"""Parses rows that hold several calls: batches of spans, traces with observations."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from outrider.data.exchange import Exchange, Reject


def outcomes_of(
    calls: Iterable[dict[str, Any]],
    parse: Callable[[dict[str, Any]], list[Exchange | Reject]],
    what: str,
) -> list[Exchange | Reject]:
    """Returns the outcomes of all calls in a row, numbered by `call`; `what` names a call."""
    outcomes: list[Exchange | Reject] = []
    for index, call in enumerate(calls, start=1):
        try:
            of_call = parse(call)
        except Reject as reject:
            numbered = Reject(reject.reason, f"{what} {index}: {reject.detail}".rstrip(": "))
            numbered.is_request = reject.is_request
            of_call = [numbered]
        for outcome in of_call:
            if isinstance(outcome, Exchange):
                outcome = dataclasses.replace(outcome, call=len(outcomes))
            outcomes.append(outcome)
    return outcomes or [Reject("not_a_generation", f"no {what}s")]
