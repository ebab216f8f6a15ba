"""Traffic profile: lengths, tenants, sampling, sessions, times and identical prompts, as counts.

The ingest's table is read in batches; about 40 bytes per row, and names such as those of sessions
once each, stay in memory, so that quantiles are exact. The profile contains no customer text.

    profile(run / "traffic/sequences", target_dir, tpot_ms=30)["lengths"]["completion"]["p90"]
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from outrider.data.ingest.chunks import NOT_LOGGED, SCHEMA
from outrider.data.ingest.load import load_of
from outrider.data.ingest.table import record_batches
from outrider.data.tokenize.emitted_text import END_THINK, THINK

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MOST_NAMED = 20
"""Maximum number of tenants, routes, and values of each sampling parameter that are counted
separately; the rest are counted as `others`."""

OTHERS = "others"

COUNTED = (
    *("fidelity", "session", "session_kind", "user", "tenant", "route"),
    *("temperature", "top_p", "top_k", "constraint", "grammar"),
)
"""Columns whose values are counted."""

MINUTE = 60


@dataclass
class _Columns:
    """What the profile uses of the rows."""

    rows_by_value: dict[str, Counter[Any]]
    """For each column of `COUNTED`, the rows with each value."""
    values: dict[str, np.ndarray]
    """By row, but for `reasoning`: tokens of `prompt` and `completion`, `time` and `seconds`, NaN
    if not logged, and a digest of the prompt's text."""


def profile(sequences_dir: Path, target_dir: Path, tpot_ms: float) -> dict[str, Any]:
    """Profiles a table of sequences; the result is plain JSON.

    Durations that were not logged are estimated at `tpot_ms` milliseconds per token.
    """
    tokenizer = Path(target_dir) / "tokenizer.json"
    end_of_reasoning = None
    if tokenizer.is_file():
        end_of_reasoning = Tokenizer.from_file(str(tokenizer)).token_to_id(END_THINK)
    columns = _read(sequences_dir, end_of_reasoning)
    rows = columns.rows_by_value
    values = columns.values
    # Equal 64-bit digests of different prompts: for ten million prompts, the probability is 3e-6.
    prompts = np.unique(values["digest"], return_counts=True)[1]
    prompt_count = int(prompts.sum())
    # int64: a log of a million requests exceeds 2^31 tokens.
    prompt_tokens = values["prompt"].sum(dtype=np.int64)
    completion_tokens = values["completion"].sum(dtype=np.int64)
    times = values["time"][~np.isnan(values["time"])]
    described: dict[str, Any] = {
        "prompt_tokens": int(prompt_tokens),
        "completion_tokens": int(completion_tokens),
        "fidelity": dict(rows["fidelity"]),
        "without_time": len(values["time"]) - len(times),
    }
    measured = ["prompt", "completion"]
    if end_of_reasoning is not None:
        measured.append("reasoning")
    described["lengths"] = {name: _lengths(values[name]) for name in measured}
    described["tenants"] = _largest(rows["tenant"])
    described["routes"] = _largest(rows["route"])
    described["sampling"] = {name: _largest(texts) for name, texts in _sampling(rows).items()}
    described["grammars"] = sum(count for text, count in rows["grammar"].items() if text)
    described["constraints"] = {name: count for name, count in rows["constraint"].items() if name}
    described["sessions"] = {
        "distinct": len(rows["session"]),
        "most_exchanges": max(rows["session"].values(), default=0),
        "exchanges": dict(rows["session_kind"].most_common()),
    }
    described["users"] = {"distinct": len(rows["user"].keys() - {""})}
    described["time"] = _arrivals(times)
    described["load"] = load_of(
        times=values["time"],
        seconds=values["seconds"],
        tokens=values["completion"],
        tpot_ms=tpot_ms,
    )
    described["duplicates"] = {
        "prompts": prompt_count,
        "identical": prompt_count - len(prompts),
        "most_copies": int(prompts.max(initial=0)),
    }
    return described


def _read(sequences_dir: Path, end_of_reasoning: int | None) -> _Columns:
    rows_by_value: dict[str, Counter[Any]] = {name: Counter() for name in COUNTED}
    parts: list[dict[str, np.ndarray]] = []
    # A table may have no batch, and then has columns without values.
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    for batch in chain([empty], record_batches(sequences_dir)):
        for name, counter in rows_by_value.items():
            pairs = batch[name].value_counts().to_pylist()
            counter.update({pair["values"]: pair["counts"] for pair in pairs})
        starts = batch["completion_start"].to_numpy()
        lengths = pc.list_value_length(batch["token_ids"]).to_numpy()
        part = {
            "prompt": starts.copy(),  # a view would keep the batch in memory
            "completion": lengths - starts,
            "reasoning": np.empty(0, np.int32),
            "time": batch["time"].to_numpy(zero_copy_only=False).copy(),
            "seconds": batch["seconds"].to_numpy(zero_copy_only=False).copy(),
            "digest": _digests(batch["prompt_text"]),
        }
        if end_of_reasoning is not None:
            part["reasoning"] = _reasoning_lengths(batch, end_of_reasoning)
        parts.append(part)
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _Columns(rows_by_value, values)


def _sampling(rows: Mapping[str, Mapping[Any, int]]) -> dict[str, dict[str, int]]:
    """Returns the rows with each value of temperature, top_p and top_k, by its text."""
    sampling = {
        name: {f"{value:g}": count for value, count in rows[name].items()}
        for name in ("temperature", "top_p")
    }
    sampling["top_k"] = {str(value or "off"): count for value, count in rows["top_k"].items()}
    return sampling


def _reasoning_lengths(batch: pa.RecordBatch, end_of_reasoning: int) -> np.ndarray:
    """Returns the number of reasoning tokens of each completion with reasoning.

    Completions that were cut before `</think>` consist only of reasoning.
    """
    lengths = []
    for ids, start, prompt in zip(
        batch["token_ids"], batch["completion_start"], batch["prompt_text"], strict=True
    ):
        completion = ids.values.to_numpy()[start.as_py() :]
        marks = np.flatnonzero(completion == end_of_reasoning)
        if len(marks):
            lengths.append(marks[0])
        # R1's template opens the reasoning in the prompt.
        elif prompt.as_py().rstrip().endswith(THINK):
            lengths.append(len(completion))
    return np.asarray(lengths, np.int32)


def _lengths(lengths: np.ndarray) -> dict[str, Any]:
    """Returns the count, quantiles and maximum of the lengths, in tokens."""
    if not len(lengths):
        return {"n": 0}
    # inverted_cdf: a length that occurs, not one between two.
    quantiles = np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf")
    quantile_lengths = {name: int(value) for name, value in zip(QUANTILES, quantiles, strict=True)}
    return {"n": len(lengths), **quantile_lengths, "max": int(lengths.max())}


def _arrivals(times: np.ndarray) -> dict[str, Any] | None:
    """Returns the time span and rate of exchanges; None without logged times."""
    if not len(times):
        return None
    first = float(times.min())
    last = float(times.max())
    _, counts = np.unique(times // MINUTE, return_counts=True)
    return {
        "first": first,
        "last": last,
        "hours": round((last - first) / 3600, 2),
        # At least one minute: a log of a few seconds has no rate per minute.
        "exchanges_per_minute": round(len(times) / max((last - first) / MINUTE, 1), 3),
        "busiest_minute": int(counts.max()),
    }


def _largest(counts: Mapping[str, int]) -> dict[str, int]:
    """Keeps the most frequent names and adds up the other counts."""
    most = Counter({name or NOT_LOGGED: count for name, count in counts.items()}).most_common()
    rest = sum(count for _, count in most[MOST_NAMED:])
    return dict(most[:MOST_NAMED]) | ({OTHERS: rest} if rest else {})


def _digests(texts: pa.StringArray) -> np.ndarray:
    """Returns a 64-bit digest of each text."""
    digests = (hashlib.blake2b(text.as_buffer(), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(texts))
