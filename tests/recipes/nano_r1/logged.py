"""Exchanges of nano R1's shipped general traffic with logged token ids, as rows for replay.

general_rows(every=40)      # [{"sequence_id", "session", "token_ids", "completion_start", ...}]
"""

import gzip
import json
from pathlib import Path
from typing import Any

import outrider.recipes.nano_r1 as package

LOG = Path(package.__file__).parent / "traffic" / "general.jsonl.gz"


def general_rows(every: int) -> list[dict[str, Any]]:
    """Those among each `every`-th exchange."""
    rows = []
    with gzip.open(LOG, "rt", encoding="utf-8") as log:
        for number, line in enumerate(log):
            if number % every:
                continue
            response = json.loads(line)["response"]
            if ids := response["choices"][0].get("token_ids"):
                prompt = response["prompt_token_ids"]
                rows.append(
                    {
                        "sequence_id": str(number),
                        "session": str(number),
                        "temperature": 0.6,
                        "top_p": 0.95,
                        "token_ids": prompt + ids,
                        "completion_start": len(prompt),
                    }
                )
    return rows
