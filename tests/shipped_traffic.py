"""The logs that are shipped with nano R1.

for row in with_token_ids("social_chat"):
    prompt, completion = token_ids(row)
general_rows(every=40)      # [{"sequence_id", "session", "token_ids", "completion_start", ...}]
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC

Row = dict[str, Any]
"""A line of a log, as parsed JSON."""


def logged_rows(workload: str) -> Iterator[Row]:
    """All rows of the workload's log."""
    with gzip.open(EMBEDDED_TRAFFIC / f"{workload}.jsonl.gz", "rt", encoding="utf-8") as log:
        yield from map(json.loads, log)


def with_token_ids(workload: str) -> Iterator[Row]:
    """The rows whose token ids were logged."""
    return (row for row in logged_rows(workload) if all(token_ids(row)))


def token_ids(row: Row) -> tuple[list[int], list[int]]:
    """Logged ids of prompt and completion, empty where there are none."""
    response = row["response"]
    return (
        response.get("prompt_token_ids") or [],
        response["choices"][0].get("token_ids") or [],
    )


def general_rows(every: int) -> list[Row]:
    """Of each `every`-th general exchange the logged token ids, as rows for replay."""
    rows = []
    for number, row in enumerate(logged_rows("general")):
        prompt, completion = token_ids(row)
        if completion and number % every == 0:
            rows.append(
                {
                    "sequence_id": str(number),
                    "session": str(number),
                    "temperature": 0.6,
                    "top_p": 0.95,
                    "top_k": 0,
                    "token_ids": prompt + completion,
                    "completion_start": len(prompt),
                }
            )
    return rows
