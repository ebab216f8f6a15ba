"""Sessions: what may not reach from one part of the split into the next.

An id of a conversation is a session, however long it lasts. An id of a user is not: it lasts for
weeks, and all but the user's exchanges of one part would be left out. Nor is a common first
question, which a template or a load test repeats. Such sessions end after a pause of
`split.session_gap_minutes`. A session with a conversation id on any of its rows counts as one.

Pauses need times. A row without one has the time of the row before it in the log; a log without any
time has no pauses, so that its users are one session each: the split then leaves out too much
rather than too little, and `inspect-traffic` says so.

    names = session_names(table, log_order(table["time"]), gap_minutes=30)
"""

import math
from collections.abc import Sequence

from datasets import Dataset

from outrider.data.exchange import CONVERSATION

KIND = "session_kind"


def session_names(
    table: Dataset, times: Sequence[tuple[float, int]], gap_minutes: float
) -> list[str]:
    """The session of every row; `times` are its keys in log order (`log_order`).

    A session that is one part of a logged name has the id of its first sequence: `session 0-17`.
    """
    logged, ids = table["session"][:], table["sequence_id"][:]
    lasting = set(logged)
    if KIND in table.column_names:  # tables of other origin have conversations
        lasting -= {
            name
            for name, kind in zip(logged, table[KIND], strict=True)
            if kind in (CONVERSATION, "")
        }
    else:
        lasting.clear()
    names, latest = list(logged), dict[str, tuple[str, float]]()
    for row in sorted(range(len(names)), key=times.__getitem__):
        name, time = logged[row], times[row][0]
        if name not in lasting:
            continue
        session, before = latest.get(name, (name, time))
        if math.isfinite(before) and time - before > 60 * gap_minutes:
            session = f"session {ids[row]}"
        latest[name] = (session, time)
        names[row] = session
    return names
