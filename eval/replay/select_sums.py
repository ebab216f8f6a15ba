"""Exact replay's sums of several stores together, and of some of their responses.

joined([of_window_3, of_window_4])
selected(sums, ids, sessions)
"""

from collections.abc import Mapping, Sequence

import numpy as np

from outrider.eval.replay.replay import ARRAYS, ReplaySums


def joined(parts: Sequence[ReplaySums]) -> ReplaySums:
    """The responses of all parts, in order; the parts must have the same depth and regions."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    ids = [name for part in parts for name in part.sequence_ids]
    sessions = [name for part in parts for name in part.sessions]
    return ReplaySums(ids, sessions, **arrays, regions=parts[0].regions)


def selected(
    sums: ReplaySums, ids: Sequence[str], sessions: Mapping[str, str] | None = None
) -> ReplaySums:
    """The responses of `ids` in that order; those that were not replayed are left out.

    Replay leaves out responses of one token. `sessions` renames sessions, by id.
    """
    place = {name: row for row, name in enumerate(sums.sequence_ids)}
    kept = [name for name in ids if name in place]
    rows = [place[name] for name in kept]
    arrays = {name: getattr(sums, name)[rows] for name in ARRAYS}
    named = [(sessions or {}).get(name, sums.sessions[place[name]]) for name in kept]
    return ReplaySums(kept, named, **arrays, regions=sums.regions)
