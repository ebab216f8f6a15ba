"""The logs that are shipped with nano R1.

for row in with_token_ids("social_chat"):
    prompt, completion = token_ids(row)
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
