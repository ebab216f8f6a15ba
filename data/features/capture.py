"""Captures the target's hidden states over the traffic, from vLLM's prefill into a feature store.

First come checks that the disk holds the states and that every sequence fits the engine
(lengths.py), then a check of the states themselves (self_check.py). An interrupted capture resumes
after its last whole shard; another target or other sequences restart it. Responses to be
regenerated are sampled before the capture (privacy/regenerate.py). The engine also scores every
completion under the target, for the check that it is on-policy (on_policy/).

    capture(TargetConfig(), "run/traffic/sequences", parts, CaptureConfig(), EngineConfig(), out)
"""

import hashlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import sampled_digest
from outrider.data.config import CaptureConfig, StateDtype, bytes_per_token
from outrider.data.features.feature_store import MANIFEST, FeatureStore, FeatureWriter
from outrider.data.features.lengths import Lengths, fit, longest
from outrider.data.features.self_check import Row, require, self_check
from outrider.data.features.state_dtype import STORED_AS
from outrider.data.privacy.regenerate import asked_rows, regenerate
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.split import ids_of
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, LoggedRow, open_engine
from outrider.serving.in_process import in_process
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, FeatureSpec
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import DEFAULT_KIND, trainable_kind

SUMMARY = "summary.json"
REPORT_S = 1.0
"""Time between two updates of the progress bar."""
SCORES_VERSION = 1
"""Raise it when the same tokens give different scores (serving/token_scores.py, logged_text.py)."""
State = tuple[str, torch.Tensor, list[list[float]] | None]
"""(sequence id, hidden [T, H], scores)"""


def capture(
    target: TargetConfig,
    sequences_dir: Tables,
    parts: dict[str, Any],
    capture: CaptureConfig,
    engine: EngineConfig,
    out_dir: Path,
    kind: str = DEFAULT_KIND,
) -> dict[str, Any]:
    """Captures every sequence of every part, with the states that a drafter of `kind` reads.

    Returns counts, speed and the self-check, which summary.json holds too.
    """
    out_dir, target_dir = Path(out_dir), target.directory()
    target_config = read_json(target_dir / "config.json")
    drafter = trainable_kind(kind)
    reads = drafter.features(drafter.config(target_config, HeadConfig(), None), target_config)
    spec = reads.stored(target_config["hidden_size"])
    _check_streams(spec, kind)
    table, lengths = fit(
        load_sequences(sequences_dir, ids_of(parts)), engine.max_model_len, capture.too_long
    )
    source = {
        "target": sampled_digest(
            [target_dir / "config.json", *sorted(target_dir.glob("*.safetensors"))]
        ),
        "sequences": _rows_digest(_rows(table, lengths.limit)),
        "dtype": engine.dtype,
        "scores": {"version": SCORES_VERSION, "positions": capture.on_policy_positions},
    }
    if lengths.cut or lengths.dropped:
        source["too_long"] = {"capture.too_long": capture.too_long, "limit": lengths.limit}
        Console(stderr=True).print(lengths.describe(), highlight=False, soft_wrap=True)
    if (out_dir / SUMMARY).exists() and _finished(out_dir, source, capture.dtype):
        return read_json(out_dir / SUMMARY)
    for change in in_process(engine)[1]:
        Console(stderr=True).print(f"capture: {change}", highlight=False, soft_wrap=True)
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = sum(min(len(token_ids), lengths.limit) for token_ids in table["token_ids"])
    _check_disk(out_dir, tokens, spec, capture.dtype)
    with open_engine(target, engine, scratch=out_dir) as live:
        head = load_target_ends(target_dir).lm_head_VH
        return capture_table(live, table, head, source, capture, out_dir, lengths)


def capture_table(
    engine: Engine,
    table: Dataset,
    lm_head_VH: torch.Tensor,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
    lengths: Lengths | None = None,
) -> dict[str, Any]:
    """Regenerates responses that the table marks, checks a spread sample, captures the table.

    `lengths` goes into the summary.
    """
    console, limit = Console(stderr=True), longest(engine.max_model_len)
    answers = regenerate(engine, asked_rows(table), out_dir, source, capture.batch_tokens)
    sample = np.linspace(
        0, len(table) - 1, min(capture.self_check_sequences, len(table)), dtype=int
    )
    check = self_check(
        engine, [row[:3] for row in _rows(table.select(sample), limit, answers)], lm_head_VH
    )
    console.print(check.describe(), highlight=False, soft_wrap=True)
    require(check, capture)
    tokens = sum(len(row.token_ids) for row in _rows(table, limit, answers))
    began = time.monotonic()

    def states(rows: Iterator[LoggedRow]) -> Iterator[State]:
        return engine.prefill_logged(rows, capture.on_policy_positions, capture.batch_tokens)

    rows = _rows(table, limit, answers)
    captured = _write(engine, states, rows, tokens, out_dir, source, capture, console, COLUMNS)
    seconds = time.monotonic() - began
    store = FeatureStore.open(out_dir)
    summary = {
        "sequences": len(store.sequence_ids),
        "tokens": tokens,
        "regenerated": len(answers),
        "bytes": sum(shard["bytes"] for shard in store.manifest["shards"]),
        "shards": len(store.manifest["shards"]),
        "tokens_captured_now": captured,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(captured / seconds, 1),
        "self_check": check.as_dict(),
        "too_long": lengths._asdict() if lengths else None,
    }
    write_json(out_dir / SUMMARY, summary, private=True)
    return summary


def capture_ids(
    engine: Engine, rows: Sequence[Row], out_dir: Path, capture: CaptureConfig | None = None
) -> FeatureStore:
    """Captures rows of (sequence id, token ids, completion start) with a running engine.

    No self-check and no scores. A finished store of the same rows at `out_dir` is reused.
    """
    source, capture = {"sequences": _rows_digest(rows)}, capture or CaptureConfig()

    def states(rows: Iterator[Row]) -> Iterator[State]:
        prompts = ((row_id, token_ids) for row_id, token_ids, _ in rows)
        return (
            (row_id, hidden_TH, None)
            for row_id, hidden_TH in engine.prefill(prompts, capture.batch_tokens)
        )

    if not _finished(out_dir, source, capture.dtype):
        tokens = sum(len(token_ids) for _, token_ids, _ in rows)
        _write(engine, states, rows, tokens, out_dir, source, capture, Console(stderr=True))
    return FeatureStore.open(out_dir)


def _write(
    engine: Engine,
    states: Callable[[Iterator[Any]], Iterator[State]],
    rows: Iterable[Row | LoggedRow],
    tokens: int,
    out_dir: Path,
    source: dict[str, Any],
    capture: CaptureConfig,
    console: Console,
    score_columns: Sequence[str] = (),
) -> int:
    """Captures the rows that the store lacks, and returns their number of tokens.

    `states` yields the states (and scores) of rows in order. The writer may be one batch behind,
    so that the engine waits neither for the disk nor for the copy.
    """
    hidden_size = engine.llm.llm_engine.model_config.get_hidden_size()
    captured = 0
    columns = (
        TextColumn("capture"),
        BarColumn(),
        TextColumn(
            "{task.completed:,.0f}/{task.total:,.0f} tokens, {task.fields[rate]:,.0f} tokens/s,"
            " time left"
        ),
        TimeRemainingColumn(),
    )
    with (
        FeatureWriter(
            out_dir,
            hidden_size,
            source,
            capture.shard_megabytes,
            score_columns,
            capture.dtype,
            queue_bytes=capture.batch_tokens * bytes_per_token(hidden_size, capture.dtype),
        ) as writer,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        if writer.restarted:
            console.print(
                f"{out_dir}: states of another target or of other sequences; capturing again",
                soft_wrap=True,
            )
        elif writer.done:
            console.print(
                f"{out_dir}: resumes after {len(writer.done)} captured sequences", soft_wrap=True
            )
        task = progress.add_task("capture", total=tokens, completed=writer.tokens, rate=0.0)
        began, done = time.monotonic(), frozenset(writer.done)
        missing, sent = itertools.tee(row for row in rows if row[0] not in done)
        reported = 0.0
        for (row_id, token_ids, completion_start, *_), (_, hidden_TH, scores) in zip(
            missing, states(sent), strict=True
        ):
            writer.write(row_id, token_ids, hidden_TH, completion_start, scores)
            captured += len(token_ids)
            if (seconds := time.monotonic() - began) > reported + REPORT_S:
                progress.update(task, completed=writer.tokens, rate=captured / seconds)
                reported = seconds
    return captured


def _rows(
    table: Dataset, limit: int, answers: Mapping[str, np.ndarray] | None = None
) -> Iterator[LoggedRow]:
    """The table's rows up to `limit` tokens, logged responses replaced by those in `answers`."""
    names = ["sequence_id", "token_ids", "completion_start", "temperature", "top_p"]
    for row in table.select_columns(names):
        logged = LoggedRow(*(row[name] for name in names))
        if answers and (answer := answers.get(logged.row_id)) is not None:
            logged = logged._replace(
                token_ids=[*logged.token_ids[: logged.completion_start], *answer.tolist()]
            )
        yield logged._replace(token_ids=logged.token_ids[:limit])


def _finished(out_dir: Path, source: dict[str, Any], dtype: StateDtype) -> bool:
    if not (Path(out_dir) / MANIFEST).exists():
        return False
    manifest = FeatureStore.open(out_dir).manifest
    return manifest["source"] == source and manifest["dtype"] == STORED_AS[dtype]


def _check_streams(spec: FeatureSpec, kind: str) -> None:
    """The worker extension takes the state after the final norm and no other yet."""
    others = [name for name in spec.names if name != FINAL_NORM]
    if others:
        raise OutriderError(
            f"speculator.kind = {kind}: it reads {', '.join(others)} of the target, and capture"
            f" takes {FINAL_NORM} only; choose a kind that reads no other state"
        )


def _check_disk(out_dir: Path, tokens: int, spec: FeatureSpec, dtype: StateDtype) -> None:
    """States and ids not yet written must fit the free space with 2 % to spare."""
    there = sum(path.stat().st_size for path in out_dir.glob("shard-*.safetensors"))
    each = bytes_per_token(spec.width, dtype, len(spec.streams))
    needed = int(1.02 * tokens * each) - there
    free = shutil.disk_usage(out_dir).free
    if needed > free:
        raise OutriderError(
            f"{out_dir}: {tokens:,} tokens with {spec.width} hidden values each need"
            f" {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB free; free some, put the"
            " runs elsewhere, lower split.max_train_sequences"
            + (", or halve it with capture.dtype: fp8" if dtype == "bf16" else "")
        )


def _rows_digest(rows: Iterable[Row | LoggedRow]) -> str:
    digest = hashlib.sha256()
    for row_id, token_ids, completion_start, *sampling in rows:
        digest.update(f"{row_id} {len(token_ids)} {completion_start} {sampling}\n".encode())
        digest.update(np.asarray(token_ids, dtype="<i4").tobytes())
    return digest.hexdigest()
