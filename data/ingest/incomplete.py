"""Finds rows whose response lacks much of the text that the engine generated.

A column of limited width, a limit on values or a lost chunk of a stream cuts a text without
a mark. The engine's count of tokens shows it, where the counts are the engine's: many gateways
estimate them with another tokenizer, so a row counts as incomplete only if most rows of the log
have exactly as many tokens as were counted.

    incomplete = incomplete_in(parts)       # {part: {row: (reason, detail)}}
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from outrider.data.ingest.arrow_files import columns_of
from outrider.data.ingest.copies import SetAside

MISSING = "missing_tokens"
"""Column of a part: tokens that the engine counted, less those of the retokenized completion; 0 if
it was not retokenized or not counted."""

MOST_MISSING = 2**31 - 1
"""Largest value of this column, whatever a log counts."""

LEAST_MISSING = 16
LEAST_SHARE = 0.1
"""Tokens, and share of the counted ones, that an incomplete response lacks at least. A sampled text
may have more tokens than the same text tokenized again: at most 3 in 1,600 of nano R1's responses,
and 2.5 % of one."""

LEAST_AGREEING = 3
"""Rows whose counts agree that show that the counts are the engine's."""

REASON = "truncated"


def incomplete_in(parts: Sequence[Path]) -> SetAside:
    """Returns the rows of each part whose response lacks text."""
    agreeing = counted = 0
    incomplete: dict[Path, dict[int, tuple[str, str]]] = {}
    for part in parts:
        columns = ["completion_agrees", MISSING, "completion_start", "token_ids"]
        table = columns_of(part, columns)
        agrees = table["completion_agrees"].drop_null()
        agreeing += pc.sum(agrees).as_py() or 0
        counted += len(agrees)
        missing = table[MISSING].to_numpy()
        for row in np.flatnonzero(missing > LEAST_MISSING).tolist():
            record = table.slice(row, 1)
            length = len(record["token_ids"][0]) - record["completion_start"][0].as_py()
            total = length + int(missing[row])
            if missing[row] > LEAST_SHARE * total:
                detail = (
                    f"the engine counted {total} tokens, and the text has {length}: log whole"
                    " responses, without a limit on the length of values"
                )
                incomplete.setdefault(part, {})[row] = (REASON, detail)
    are_engines = agreeing >= LEAST_AGREEING and 2 * agreeing >= counted
    return incomplete if are_engines else {}
