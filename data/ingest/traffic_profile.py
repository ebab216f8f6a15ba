"""Traffic profile: lengths, tenants, sampling, sessions, times and identical prompts, as counts.

One pass over the table of an ingest, a batch at a time. It keeps about 40 bytes per row, so that
quantiles are exact; ten million exchanges take half a gigabyte. The profile holds no customer text.

    profile(run / "traffic/sequences", target_dir)["lengths"]["completion"]["p90"]
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from outrider.data.tokenize.emitted_text import END_THINK, THINK

STEPS = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)
EDGES = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    *(step * 10**power // 10 for power in range(5) for step in STEPS),
    10**6,
]
"""Edges of the histograms: ten bins a decade, about evenly spaced on a log scale, and the same for
every log, so that logs can be compared."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MOST_NAMED = 20
"""Maximum number of tenants, or values of temperature, top_p and top_k, that are counted
separately; the rest are `others`."""

NOT_LOGGED, OTHERS = "not logged", "others"

MINUTE = 60


def profile(sequences_dir: Path, target_dir: Path) -> dict[str, Any]:
    """Profiles a table of sequences; the result is plain JSON."""
    counted = _Profile(_end_of_reasoning(target_dir))
    for path in sorted(Path(sequences_dir).glob("*.arrow")):
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as table:
            for batch in table:
                counted.add(batch)
    return counted.summary()


class _Profile:
    def __init__(self, end_of_reasoning: int | None) -> None:
        self.end_of_reasoning = end_of_reasoning
        self.tenants: Counter[str] = Counter()
        self.routes: Counter[str] = Counter()
        self.temperatures: Counter[float] = Counter()
        self.top_ps: Counter[float] = Counter()
        self.top_ks: Counter[int] = Counter()
        self.lengths: dict[str, list[np.ndarray]] = {
            "prompt": [],
            "completion": [],
            "reasoning": [],
        }
        self.times: list[np.ndarray] = []
        self.sessions: list[np.ndarray] = []
        self.session_kinds: Counter[str] = Counter()
        self.prompts: list[np.ndarray] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts the rows of one batch."""
        starts = (
            batch.column("completion_start").to_numpy().copy()
        )  # a view would hold the whole batch
        ids = batch.column("token_ids")
        totals = np.diff(ids.offsets.to_numpy())
        self.lengths["prompt"].append(starts)
        self.lengths["completion"].append((totals - starts).astype(np.int32))
        prompts = batch.column("prompt_text").to_pylist()
        if self.end_of_reasoning is not None:
            self.lengths["reasoning"].append(self._reasoning(ids, starts, prompts))
        self.tenants.update(batch.column("tenant").to_pylist())
        self.routes.update(batch.column("route").to_pylist())
        self.temperatures.update(batch.column("temperature").to_pylist())
        self.top_ps.update(batch.column("top_p").to_pylist())
        self.top_ks.update(batch.column("top_k").to_pylist())
        self.times.append(batch.column("time").drop_null().to_numpy().copy())
        self.session_kinds.update(batch.column("session_kind").to_pylist())
        self.sessions.append(_hashes(batch.column("session").to_pylist()))
        self.prompts.append(_hashes(prompts))

    def _reasoning(self, ids: pa.ListArray, starts: np.ndarray, prompts: list[str]) -> np.ndarray:
        """Tokens before `</think>` of the completions with reasoning.

        Completions that were cut before it are reasoning to their end.
        """
        flat, offsets = ids.values.to_numpy(), ids.offsets.to_numpy()
        begins, ends = offsets[:-1] + starts, offsets[1:]
        marks = np.flatnonzero(flat == self.end_of_reasoning)
        found = np.searchsorted(marks, begins)  # first mark at or after the start of the completion
        lengths = []
        for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if found[row] < len(marks) and marks[found[row]] < end:
                lengths.append(marks[found[row]] - begin)
            elif prompts[row].rstrip().endswith(THINK):
                lengths.append(end - begin)
        return np.asarray(lengths, np.int32)

    def summary(self) -> dict[str, Any]:
        """The profile for `summary.json`."""
        sessions, prompts = _copies(self.sessions), _copies(self.prompts)
        return {
            "lengths": {name: _lengths(parts) for name, parts in self.lengths.items() if parts},
            "tenants": _largest(
                {name or NOT_LOGGED: count for name, count in self.tenants.items()}
            ),
            "routes": _largest({name or NOT_LOGGED: count for name, count in self.routes.items()}),
            "sampling": {
                "temperature": _largest(
                    {f"{value:g}": count for value, count in self.temperatures.items()}
                ),
                "top_p": _largest({f"{value:g}": count for value, count in self.top_ps.items()}),
                "top_k": _largest(
                    {str(value or "off"): count for value, count in self.top_ks.items()}
                ),
            },
            "sessions": {
                "distinct": len(sessions),
                "most_exchanges": int(sessions.max(initial=0)),
                "exchanges": dict(self.session_kinds.most_common()),
            },
            "time": _arrivals(self.times),
            "duplicates": {
                "prompts": int(prompts.sum()),
                "distinct": len(prompts),
                "identical": int(prompts.sum()) - len(prompts),
                "most_copies": int(prompts.max(initial=0)),
            },
        }


def _end_of_reasoning(target_dir: Path) -> int | None:
    """Id of `</think>`; None for a target without this token, so without reasoning lengths."""
    from tokenizers import Tokenizer

    path = Path(target_dir) / "tokenizer.json"
    return Tokenizer.from_file(str(path)).token_to_id(END_THINK) if path.is_file() else None


def _lengths(parts: list[np.ndarray]) -> dict[str, Any]:
    """Quantiles in tokens, and [least, most, count] of the bins from first to last in use."""
    lengths = np.concatenate(parts)
    if not len(lengths):
        return {"n": 0}
    counts, _ = np.histogram(np.minimum(lengths, EDGES[-1]), bins=EDGES)
    held = np.flatnonzero(counts)
    quantiles = np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf")
    total = int(lengths.sum(dtype=np.int64))
    return {
        "n": len(lengths),
        "tokens": total,
        "mean": round(total / len(lengths), 1),
        **{name: int(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "max": int(lengths.max()),
        "bins": [
            [EDGES[i], EDGES[i + 1] - 1, int(counts[i])] for i in range(held[0], held[-1] + 1)
        ],
    }


def _arrivals(parts: list[np.ndarray]) -> dict[str, Any] | None:
    """Span and rate of the exchanges with a logged time; None without any."""
    times = np.concatenate([np.empty(0), *parts])
    if not len(times):
        return None
    first, last = float(times.min()), float(times.max())
    minutes, counts = np.unique(times // MINUTE, return_counts=True)
    busiest = int(counts.argmax())
    return {
        "first": first,
        "last": last,
        "hours": round((last - first) / 3600, 2),
        "exchanges_per_minute": round(len(times) / max((last - first) / MINUTE, 1), 3),
        "busiest_minute": {
            "begins": float(minutes[busiest] * MINUTE),
            "exchanges": int(counts[busiest]),
        },
    }


def _largest(counts: dict[str, int]) -> dict[str, int]:
    """The most frequent names; the others as one count."""
    most = Counter(counts).most_common()
    rest = sum(count for _, count in most[MOST_NAMED:])
    return dict(most[:MOST_NAMED]) | ({OTHERS: rest} if rest else {})


def _hashes(texts: Iterable[str]) -> np.ndarray:
    """64-bit hashes. Among ten million texts, a collision has a chance of 3 in a million."""
    return np.asarray(
        [
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
            for text in texts
        ],
        np.uint64,
    )


def _copies(parts: list[np.ndarray]) -> np.ndarray:
    """Number of occurrences of each distinct hash."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)[1]
