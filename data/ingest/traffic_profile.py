"""Traffic profile: lengths, tenants, sampling, sessions, times and identical prompts, as counts.

The ingest's table is memory-mapped and read by column or in batches; about 40 bytes per row stay
in memory, so that quantiles are exact. The profile contains no customer text.

    profile(run / "traffic/sequences", target_dir, tpot_ms=30)["lengths"]["completion"]["p90"]
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
from tokenizers import Tokenizer

from outrider.data.ingest.load import load_of
from outrider.data.tokenize.emitted_text import END_THINK, THINK

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MOST_NAMED = 20
"""Maximum number of tenants, routes, and values of each sampling parameter that are counted
separately; the rest are counted as `others`."""

NOT_LOGGED, OTHERS = "not logged", "others"

MINUTE = 60


def profile(sequences_dir: Path, target_dir: Path, tpot_ms: float) -> dict[str, Any]:
    """Profiles a table of sequences; the result is plain JSON.

    Durations that were not logged are estimated at `tpot_ms` milliseconds per token.
    """
    table: pa.Table = load_from_disk(str(sequences_dir)).data.table
    starts = table["completion_start"].to_numpy()
    lengths = {
        "prompt": starts,
        "completion": pc.list_value_length(table["token_ids"]).to_numpy() - starts,
    }
    tokenizer = Path(target_dir) / "tokenizer.json"
    if tokenizer.is_file():
        end_of_reasoning = Tokenizer.from_file(str(tokenizer)).token_to_id(END_THINK)
        if end_of_reasoning is not None:
            lengths["reasoning"] = _reasoning_lengths(table, end_of_reasoning)
    sampling = _sampling(table)
    sessions = np.asarray([*_counts(table["session"]).values()])
    session_kinds = Counter(_counts(table["session_kind"]))
    prompts = _copies(table["prompt_text"])
    distinct_prompts = len(prompts)
    prompt_count = int(prompts.sum())
    # int64: a log of a million requests exceeds 2^31 tokens.
    prompt_tokens = lengths["prompt"].sum(dtype=np.int64)
    completion_tokens = lengths["completion"].sum(dtype=np.int64)
    times = table["time"].drop_null().to_numpy()
    described: dict[str, Any] = {
        "prompt_tokens": int(prompt_tokens),
        "completion_tokens": int(completion_tokens),
        "fidelity": _counts(table["fidelity"]),
        "without_time": table["time"].null_count,
    }
    described["lengths"] = {name: _lengths(values) for name, values in lengths.items()}
    described["tenants"] = _largest(_counts(table["tenant"]))
    described["routes"] = _largest(_counts(table["route"]))
    described["sampling"] = {name: _largest(values) for name, values in sampling.items()}
    described["grammars"] = sum(n for text, n in _counts(table["grammar"]).items() if text)
    constraints = _counts(table["constraint"])
    described["constraints"] = {name: n for name, n in constraints.items() if name}
    described["sessions"] = {
        "distinct": len(sessions),
        "most_exchanges": int(sessions.max(initial=0)),
        "exchanges": dict(session_kinds.most_common()),
    }
    described["users"] = {"distinct": len({*_counts(table["user"])} - {""})}
    described["time"] = _arrivals(times)
    described["load"] = load_of(
        times=table["time"].to_numpy(),
        seconds=table["seconds"].to_numpy(),
        tokens=lengths["completion"],
        tpot_ms=tpot_ms,
    )
    described["duplicates"] = {
        "prompts": prompt_count,
        "identical": prompt_count - distinct_prompts,
        "most_copies": int(prompts.max(initial=0)),
    }
    return described


def _counts(column: pa.ChunkedArray) -> dict[Any, int]:
    """Counts the rows with each value."""
    return {pair["values"]: pair["counts"] for pair in column.value_counts().to_pylist()}


def _sampling(table: pa.Table) -> dict[str, dict[str, int]]:
    """Counts the rows with each value of temperature, top_p and top_k."""
    sampling = {
        name: {f"{value:g}": count for value, count in _counts(table[name]).items()}
        for name in ("temperature", "top_p")
    }
    top_k = _counts(table["top_k"])
    sampling["top_k"] = {str(value or "off"): count for value, count in top_k.items()}
    return sampling


def _reasoning_lengths(table: pa.Table, end_of_reasoning: int) -> np.ndarray:
    """Returns the number of reasoning tokens of each completion with reasoning.

    Completions that were cut before `</think>` consist only of reasoning.
    """
    lengths = []
    for ids, start, prompt in zip(
        table["token_ids"], table["completion_start"], table["prompt_text"], strict=True
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


def _copies(texts: pa.ChunkedArray) -> np.ndarray:
    """Counts the occurrences of each distinct text.

    Compares 64-bit hashes: for ten million texts, the probability of a collision is 3e-6.
    """
    digests = (hashlib.blake2b(text.as_buffer(), digest_size=8).digest() for text in texts)
    hashes = np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(texts))
    return np.unique(hashes, return_counts=True)[1]
