"""The order of calls of a swap, and what is done where workers disagree."""

import asyncio
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.vllm_hooks.swap import SpeculatorBroken, swap

SOURCE = {"directory": "/releases/new"}


def run(errors: list[str | None], stuck: int | None = None) -> tuple[list[str], Any]:
    """The calls, and the result or the error, with one worker for each of `errors`.

    `stuck` is the worker that cannot take it back.
    """
    called: list[str] = []

    async def rpc(method: str, arguments: dict[str, Any]) -> list[Any]:
        called.append(method)
        if method == "update_weights":
            assert arguments["update_info"] == SOURCE | {"swap_id": "one", "quiet": True}
        if method not in ("speculator_report", "speculator_take_back"):
            return [None] * len(errors)
        reports: list[Any] = [{"error": error, "broken": None} for error in errors]
        if method == "speculator_take_back":
            assert arguments == {"swap_id": "one"}
            if stuck is not None:
                reports[stuck]["broken"] = "not taken back"
        return reports

    try:
        return called, asyncio.run(swap(rpc, SOURCE, "one"))
    except OutriderError as error:
        return called, error


SESSION = ["start_draft_weight_update", "update_weights", "finish_weight_update"]


@pytest.mark.parametrize("errors", [["full"], ["full", "full"]])
def test_where_all_workers_fail_there_is_nothing_to_take_back(errors: list[str | None]) -> None:
    called, error = run(errors)
    assert called == [*SESSION, "speculator_report"]
    assert str(error).startswith("/releases/new: not loaded") and str(error).endswith(": full")


def test_where_one_worker_fails_the_others_take_it_back() -> None:
    called, error = run([None, "broken", None])
    assert called == [*SESSION, "speculator_report", "speculator_take_back"]
    assert "stays in use: broken" in str(error)
    assert not isinstance(error, SpeculatorBroken)


def test_a_worker_that_cannot_take_it_back_leaves_it_broken() -> None:
    _, error = run([None, "full", None], stuck=2)
    assert isinstance(error, SpeculatorBroken) and "not taken back" in str(error)
