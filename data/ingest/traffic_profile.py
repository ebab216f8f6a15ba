"""Traffic profile: lengths, tenants, sampling, sessions, times and identical prompts, as counts.

The table of an ingest is mapped into memory and read a column or a batch at a time; about 40 bytes
per row are kept, so that quantiles are exact. The profile holds no customer text.

    profile(run / "traffic/sequences", target_dir)["lengths"]["completion"]["p90"]
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import load_from_disk

from outrider.data.tokenize.emitted_text import END_THINK, THINK

STEPS = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)
EDGES = [
    *range(7),
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
    table: pa.Table = load_from_disk(str(sequences_dir)).data.table
    starts = table["completion_start"].to_numpy()
    lengths = {
        "prompt": starts,
        "completion": pc.list_value_length(table["token_ids"]).to_numpy() - starts,
    }
    end_of_reasoning = _end_of_reasoning(target_dir)
    if end_of_reasoning is not None:
        lengths["reasoning"] = _reasoning_lengths(table, end_of_reasoning)
    sessions = np.asarray([*_counts(table["session"]).values()])
    prompts = _copies(table["prompt_text"])
    return {
        "lengths": {name: _lengths(values) for name, values in lengths.items()},
        "tenants": _largest(_counts(table["tenant"])),
        "routes": _largest(_counts(table["route"])),
        "sampling": {
            name: _largest({f"{value:g}": count for value, count in _counts(table[name]).items()})
            for name in ("temperature", "top_p")
        }
        | {
            "top_k": _largest(
                {str(value or "off"): count for value, count in _counts(table["top_k"]).items()}
            )
        },
        "sessions": {
            "distinct": len(sessions),
            "most_exchanges": int(sessions.max(initial=0)),
            "exchanges": dict(Counter(_counts(table["session_kind"])).most_common()),
        },
        "time": _arrivals(table["time"].drop_null().to_numpy()),
        "duplicates": {
            "prompts": int(prompts.sum()),
            "distinct": len(prompts),
            "identical": int(prompts.sum()) - len(prompts),
            "most_copies": int(prompts.max(initial=0)),
        },
    }


def _counts(column: pa.ChunkedArray) -> dict[Any, int]:
    """Number of rows by value."""
    return {pair["values"]: pair["counts"] for pair in column.value_counts().to_pylist()}


def _reasoning_lengths(table: pa.Table, end_of_reasoning: int) -> np.ndarray:
    """Tokens before `</think>` of the completions with reasoning.

    Completions that were cut before it are reasoning to their end.
    """
    lengths = []
    columns = ("token_ids", "completion_start", "prompt_text")
    for batch in table.select(columns).to_batches():
        ids, starts, prompts = batch.columns
        flat, offsets = ids.values.to_numpy(), ids.offsets.to_numpy()
        marks = np.flatnonzero(flat == end_of_reasoning)
        begins, ends = offsets[:-1] + starts.to_numpy(), offsets[1:]
        found = np.searchsorted(marks, begins)  # first mark at or after the completion's start
        for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if found[row] < len(marks) and marks[found[row]] < end:
                lengths.append(marks[found[row]] - begin)
            elif prompts[row].as_py().rstrip().endswith(THINK):
                lengths.append(end - begin)
    return np.asarray(lengths, np.int32)


def _end_of_reasoning(target_dir: Path) -> int | None:
    """Id of `</think>`; None for a target without this token, so without reasoning lengths."""
    from tokenizers import Tokenizer

    path = Path(target_dir) / "tokenizer.json"
    return Tokenizer.from_file(str(path)).token_to_id(END_THINK) if path.is_file() else None


def _lengths(lengths: np.ndarray) -> dict[str, Any]:
    """Quantiles in tokens, and [least, most, count] of the bins from first to last in use."""
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


def _arrivals(times: np.ndarray) -> dict[str, Any] | None:
    """Span and rate of the exchanges with a logged time; None without any."""
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


def _largest(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent names; the others as one count."""
    most = Counter({name or NOT_LOGGED: count for name, count in counts.items()}).most_common()
    rest = sum(count for _, count in most[MOST_NAMED:])
    return dict(most[:MOST_NAMED]) | ({OTHERS: rest} if rest else {})


def _copies(texts: pa.ChunkedArray) -> np.ndarray:
    """Number of occurrences of each distinct text.

    By 64-bit hashes: among ten million texts, a collision has a chance of 3 in a million.
    """
    hashes = np.zeros(len(texts), np.uint64)
    for row, text in enumerate(texts):
        digest = hashlib.blake2b(text.as_buffer(), digest_size=8).digest()
        hashes[row] = int.from_bytes(digest, "big")
    return np.unique(hashes, return_counts=True)[1]
