"""Exchanges of nano R1's shipped general traffic with logged token ids, as rows for replay.

general_rows(every=40)      # [{"sequence_id", "session", "token_ids", "completion_start", ...}]
"""

from typing import Any

from tests.shipped_traffic import logged_rows, token_ids


def general_rows(every: int) -> list[dict[str, Any]]:
    """Those among each `every`-th exchange."""
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
