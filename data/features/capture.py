"""Captures the target's hidden states from vLLM's prefill into a feature store.

It first truncates sequences that are too long (capture_plan.py) and checks that the disk has room
for the states, then checks the states themselves (engine_checks.py). An interrupted capture resumes
after its last complete shard; a different target or different sequences restart it. Responses to be
regenerated are sampled before the capture (privacy/regenerate.py). The engine also scores every
completion under the target, for the on-policy check (on_policy/).

    capture(TargetConfig(), "run/traffic/sequences", parts, CaptureConfig(), EngineConfig(), out)
"""

import functools
import hashlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import Progress

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import sampled_digest
from outrider.common.lost_ends import LostEnds
from outrider.data.config import CaptureConfig, StateDtype, bytes_per_token
from outrider.data.features.capture_plan import (
    Piece,
    fit,
    pieces,
    rows_of,
    sample_of,
    state_bytes,
    unfinished,
)
from outrider.data.features.engine_checks import Row, check_engine
from outrider.data.features.feature_store import MANIFEST, STORED_AS, FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.features.replica import ReplicaSetup
from outrider.data.privacy.regenerate import Answer, asked_rows, regenerate
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.split import ids_of
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, LoggedRow, State, in_process, open_engine
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, FeatureSpec, layer_index

SUMMARY = "summary.json"
SCORES_VERSION = 3
"""Increment when scores of the same tokens change (serving/token_scores.py, logged_text.py)."""
LINE_EVERY_S = 60.0
"""Seconds between lines of progress if the output is not a terminal."""
ONLY_FINAL = FeatureSpec(())
"""Only the stream after the final norm, which the teacher's head reads."""

Captured = tuple[LoggedRow, State]
"""A row with its states and scores."""


def capture(
    target: TargetConfig,
    sequences_dir: Tables,
    parts: dict[str, Any],
    capture: CaptureConfig,
    engine: EngineConfig,
    out_dir: Path,
    features: FeatureSpec = ONLY_FINAL,
    cluster: ClusterConfig | None = None,
) -> dict[str, Any]:
    """Captures the final state and the streams of `features` for all parts.

    For drafters of several kinds, `features` is the union of the streams that they read. If
    `cluster` has an address, replicas do the work (replicas.py) and produce an identical store.
    Returns counts, speed and the checks, which are also written to summary.json.
    """
    out_dir = Path(out_dir)
    target_dir = target.directory()
    target_config = read_json(target_dir / "config.json")
    spec = features.stored(target_config["hidden_size"])
    _check_streams(spec, target_config, engine)
    table, lengths = fit(load_sequences(sequences_dir, ids_of(parts)), engine.max_model_len)
    source = {
        "target": sampled_digest(
            [target_dir / "config.json", *sorted(target_dir.glob("*.safetensors"))]
        ),
        "sequences": _rows_digest(rows_of(table, lengths.limit)),
        "dtype": engine.dtype,
        "scores": {"version": SCORES_VERSION, "positions": capture.on_policy_positions},
    }
    if lengths.cut or lengths.dropped:
        source["too_long"] = {"limit": lengths.limit}
        Console(stderr=True).print(lengths.describe(), highlight=False, soft_wrap=True)
    if (out_dir / SUMMARY).exists() and _finished(out_dir, source, spec, capture.dtype):
        return read_json(out_dir / SUMMARY)
    for change in in_process(engine)[1]:
        Console(stderr=True).print(f"capture: {change}", highlight=False, soft_wrap=True)
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = sum(len(row.token_ids) for row in rows_of(table, lengths.limit))
    _check_disk(out_dir, tokens, spec, capture.dtype)
    if cluster is not None and cluster.address is not None:
        return _on_replicas(
            cluster=cluster,
            target=target,
            engine=engine,
            table=table,
            source=source,
            capture=capture,
            out_dir=out_dir,
            lengths=lengths,
            spec=spec,
        )
    # Before the engine, which takes minutes to start: a head in another format is refused.
    head = load_target_ends(target_dir).lm_head_VH
    Console(stderr=True).print("starting the engine", highlight=False)
    with open_engine(target, engine, scratch=out_dir) as live:
        return capture_table(
            engine=live,
            table=table,
            lm_head_VH=head,
            source=source,
            capture=capture,
            out_dir=out_dir,
            lengths=lengths,
            features=features,
        )


def capture_table(
    engine: Engine,
    table: Dataset,
    lm_head_VH: torch.Tensor,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
    lengths: LostEnds | None = None,
    features: FeatureSpec = ONLY_FINAL,
) -> dict[str, Any]:
    """Checks a sample, regenerates marked responses, and captures the table.

    `lengths` is written to the summary.
    """
    limit = engine.max_model_len - 1
    model = engine.llm.llm_engine.model_config
    spec = features.stored(model.get_hidden_size())
    sample = sample_of(table, limit, capture.self_check_sequences)
    checks = check_engine(
        engine=engine, rows=sample, spec=spec, lm_head_VH=lm_head_VH, target_dir=Path(model.model)
    )
    Console(stderr=True).print(checks.pop("in_words"), highlight=False, soft_wrap=True)
    states = _states_of(engine, spec, capture.batch_tokens, capture.on_policy_positions)
    found = _write_table(
        table=table,
        limit=limit,
        answer=engine.answer,
        states=states,
        spec=spec,
        source=source,
        capture=capture,
        out_dir=out_dir,
    )
    found |= {**checks, "too_long": lengths._asdict() if lengths else None}
    write_json(out_dir / SUMMARY, found, private=True)
    return found


def _on_replicas(
    cluster: ClusterConfig,
    target: TargetConfig,
    engine: EngineConfig,
    table: Dataset,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
    lengths: LostEnds,
    spec: FeatureSpec,
) -> dict[str, Any]:
    """Like `capture_table`, with an engine and its checks in each replica."""
    limit = lengths.limit
    longest_row = max(min(len(token_ids), limit) for token_ids in table["token_ids"])
    setup = ReplicaSetup(
        target=target,
        engine=engine,
        capture=capture,
        spec=spec,
        checked=tuple(sample_of(table, limit, capture.self_check_sequences)),
        in_memory=False,
        piece_tokens=max(capture.batch_tokens, longest_row),
    )
    with open_cluster(cluster) as session:  # first, because it raises if Ray is missing
        from outrider.data.features.replicas import Replicas, start_replicas

        with start_replicas(cluster, setup) as (_, actors):
            replicas = Replicas(actors, state_bytes(spec), cluster.start_timeout_s)
            in_flight = session.in_flight_bytes(cluster)

            def states(plan: Iterator[Piece]) -> Iterator[Captured]:
                for piece, rows in replicas.stream(plan, in_flight):
                    yield from zip(piece.rows, rows, strict=True)

            found = _write_table(
                table=table,
                limit=limit,
                answer=replicas.answer,
                states=states,
                spec=spec,
                source=source,
                capture=capture,
                out_dir=out_dir,
            )
            found |= {"replicas": replicas.running, "lost_replicas": replicas.lost}
            found |= {"left_out": replicas.left_out, "too_long": lengths._asdict()}
            write_json(out_dir / SUMMARY, found, private=True)
            return found


def _states_of(
    engine: Engine, spec: FeatureSpec, batch_tokens: int, positions: int | None = None
) -> Callable[[Iterator[Piece]], Iterator[Captured]]:
    """Captures with one engine; scores up to about `positions` tokens per completion."""

    def states(plan: Iterator[Piece]) -> Iterator[Captured]:
        rows, sent = itertools.tee(row for piece in plan for row in piece.rows)
        return zip(rows, engine.prefill(sent, spec.names, batch_tokens, positions), strict=True)

    return states


def _write_table(
    table: Dataset,
    limit: int,
    answer: Answer,
    states: Callable[[Iterator[Piece]], Iterator[Captured]],
    spec: FeatureSpec,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
) -> dict[str, Any]:
    """Regenerates marked rows with `answer`, then captures all rows with scores."""
    answers = regenerate(
        answer=answer,
        rows=asked_rows(table),
        out_dir=out_dir,
        source=source,
        batch_tokens=capture.batch_tokens,
    )
    rows = functools.partial(rows_of, table, limit, answers)
    written = _write_store(
        spec=spec,
        states=states,
        rows=rows,
        out_dir=out_dir,
        source=source,
        capture=capture,
        score_columns=COLUMNS,
    )
    return {**written, "regenerated": len(answers)}


def capture_ids(
    engine: Engine,
    rows: Sequence[Row],
    out_dir: Path,
    capture: CaptureConfig | None = None,
    features: FeatureSpec = ONLY_FINAL,
) -> FeatureStore:
    """Captures rows of (sequence id, token ids, completion start) with a running engine.

    No checks and no scores. A finished store of the same rows at `out_dir` is reused.
    """
    source = {"sequences": _rows_digest(rows)}
    capture = capture or CaptureConfig()
    spec = features.stored(engine.llm.llm_engine.model_config.get_hidden_size())
    if not _finished(out_dir, source, spec, capture.dtype):
        unsampled = [LoggedRow(*row, temperature=1.0, top_p=1.0) for row in rows]
        states = _states_of(engine, spec, capture.batch_tokens)
        _write_store(
            spec=spec,
            states=states,
            rows=lambda: iter(unsampled),
            out_dir=out_dir,
            source=source,
            capture=capture,
        )
    return FeatureStore.open(out_dir)


def _write_store(
    spec: FeatureSpec,
    states: Callable[[Iterator[Piece]], Iterator[Captured]],
    rows: Callable[[], Iterator[LoggedRow]],
    out_dir: Path,
    source: dict[str, Any],
    capture: CaptureConfig,
    score_columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Captures the rows that the store lacks; returns counts and speed.

    `states` yields a plan's rows in order, each with its states and scores.
    """
    console = Console(stderr=True)
    total = sum(len(row.token_ids) for row in rows())
    final, *auxiliary = spec.streams
    captured = 0
    with (
        FeatureWriter(
            directory=out_dir,
            hidden_size=final.width,
            source=source,
            shard_megabytes=capture.shard_megabytes,
            score_columns=score_columns,
            dtype=capture.dtype,
            auxiliary=auxiliary,
        ) as writer,
        Progress(console=console, transient=True) as progress,
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
        task = progress.add_task("capture", total=total, completed=writer.tokens)
        began = time.monotonic()
        done = frozenset(writer.done)
        said: tuple[float, int] | None = None
        plan = unfinished(pieces(rows(), capture.batch_tokens), done)
        for row, (_, by_name, scores) in states(plan):
            if row.row_id in done:
                continue
            hidden_TH = by_name.pop(FINAL_NORM)
            writer.write(
                row.row_id, row.token_ids, hidden_TH, row.completion_start, scores, by_name
            )
            captured += len(row.token_ids)
            progress.update(task, completed=writer.tokens)
            now = time.monotonic()
            if said is None:  # a batch's rows arrive together, the first ones late
                said = now, captured
            elif not console.is_terminal and now >= said[0] + LINE_EVERY_S:
                rate = (captured - said[1]) / (now - said[0])
                said = now, captured
                console.print(
                    f"captured {writer.tokens:,} of {total:,} tokens, {rate:,.0f} tokens/s, about"
                    f" {(total - writer.tokens) / rate / 60:.0f} min left",
                    soft_wrap=True,
                )
    seconds = time.monotonic() - began
    return {
        "sequences": len(writer.done),
        "tokens": total,
        "bytes": sum(shard["bytes"] for shard in writer.shards),
        "shards": len(writer.shards),
        "tokens_captured_now": captured,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(captured / seconds, 1),
    }


def _finished(out_dir: Path, source: dict[str, Any], spec: FeatureSpec, dtype: StateDtype) -> bool:
    """Whether a complete store of the same source exists, with at least these streams."""
    if not (Path(out_dir) / MANIFEST).exists():
        return False
    store = FeatureStore.open(out_dir)
    return (
        store.manifest["source"] == source
        and store.manifest["dtype"] == STORED_AS[dtype]
        and set(spec.streams) <= set(store.spec.streams)
    )


def _check_streams(spec: FeatureSpec, target_config: dict[str, Any], engine: EngineConfig) -> None:
    """Raises an `OutriderError` if the target or engine lacks a stream."""
    hidden_size = target_config["hidden_size"]
    layers = target_config["num_hidden_layers"]
    for stream in spec.auxiliary:
        if not 1 <= layer_index(stream.name) <= layers or stream.width != hidden_size:
            raise OutriderError(
                f"the speculator reads {stream.name} ({stream.width} values) of the target, which"
                f" has layer_1 to layer_{layers} ({hidden_size} values each); choose a speculator"
                " that was made for this target"
            )
    if spec.auxiliary and engine.pipeline_parallel > 1:
        raise OutriderError(
            f"serving.engine.pipeline_parallel = {engine.pipeline_parallel}: the speculator reads"
            f" {', '.join(spec.names[1:])} of the target, but in vLLM 0.32 the last pipeline stage"
            " has only its own layers; use tensor_parallel, or train a kind that reads only"
            f" {FINAL_NORM}"
        )


def _check_disk(out_dir: Path, tokens: int, spec: FeatureSpec, dtype: StateDtype) -> None:
    """Checks that the disk has room for the remaining states plus 2 %."""
    there = sum(path.stat().st_size for path in out_dir.glob("shard-*.safetensors"))
    needed = int(1.02 * tokens * bytes_per_token(spec.width, dtype, len(spec.streams))) - there
    free = shutil.disk_usage(out_dir).free
    if needed > free:
        raise OutriderError(
            f"{out_dir}: {tokens:,} tokens with {spec.width} hidden values each need"
            f" {needed / 1e9:.1f} GB, but the disk has {free / 1e9:.1f} GB free; free some, put the"
            " runs elsewhere, or lower split.max_train_sequences"
            + (", or store half with capture.dtype: fp8" if dtype == "bf16" else "")
        )


def _rows_digest(rows: Iterable[Row | LoggedRow]) -> str:
    digest = hashlib.sha256()
    for row_id, token_ids, completion_start, *sampling in rows:
        digest.update(f"{row_id} {len(token_ids)} {completion_start} {sampling}\n".encode())
        digest.update(np.asarray(token_ids, dtype="<i4").tobytes())
    return digest.hexdigest()
