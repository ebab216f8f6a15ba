"""The order of calls of an exchange, and what is done where workers disagree."""

from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.vllm_hooks.exchange import exchange_steps

SOURCE = {"directory": "/releases/new"}


def run(errors: list[str | None]) -> tuple[list[str], Any]:
    """The calls, and the result or the error, with one worker for each of `errors`."""
    steps, called, answer = exchange_steps(SOURCE, "one"), [], None
    try:
        while True:
            method, arguments = steps.send(answer)
            called.append(method)
            answer = [None] * len(errors)
            if method == "speculator_report":
                answer = [{"error": error} for error in errors]
            if method == "update_weights":
                assert arguments["update_info"] == SOURCE | {"exchange": "one", "quiet": True}
            if method == "speculator_take_back":
                assert arguments == {"exchange": "one"}
    except StopIteration as end:
        return called, end.value
    except OutriderError as error:
        return called, error


SESSION = ["start_draft_weight_update", "update_weights", "finish_weight_update"]


def test_all_workers_load_it() -> None:
    assert run([None, None]) == ([*SESSION, "speculator_report"], [{"error": None}] * 2)


@pytest.mark.parametrize("errors", [["full"], ["full", "full"]])
def test_where_all_workers_fail_there_is_nothing_to_take_back(errors: list[str | None]) -> None:
    called, error = run(errors)
    assert called == [*SESSION, "speculator_report"]
    assert str(error).startswith("/releases/new: not loaded") and str(error).endswith(": full")


def test_where_one_worker_fails_the_others_take_it_back() -> None:
    called, error = run([None, "broken", None])
    assert called == [*SESSION, "speculator_report", "speculator_take_back"]
    assert "stays in use: broken" in str(error)
