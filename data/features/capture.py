"""Captures the target's hidden states over the traffic, from vLLM's prefill into a feature store.

First come checks that the disk holds the states and that every sequence fits the engine
(lengths.py), then checks of the states themselves (self_check.py, layer_check.py). An interrupted
capture resumes after its last whole shard; another target or other sequences restart it. Responses
to be regenerated are sampled before the capture (privacy/regenerate.py). The engine also scores
every completion under the target, for the check that it is on-policy (on_policy/).

    capture(TargetConfig(), "run/traffic/sequences", parts, CaptureConfig(), EngineConfig(), out)
"""

import dataclasses
import hashlib
import itertools
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import ClusterSession, open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import sampled_digest, value_digest
from outrider.common.lost_ends import LostEnds
from outrider.data.config import CaptureConfig, StateDtype, bytes_per_token
from outrider.data.features.capture_plan import Piece
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.features.layer_check import layer_check, norm_and_layers
from outrider.data.features.layer_check import require as require_layers
from outrider.data.features.lengths import fit, longest
from outrider.data.features.replica import ReplicaSetup
from outrider.data.features.replicas import Replicas
from outrider.data.features.self_check import Row, require, self_check
from outrider.data.features.state_dtype import STORED_AS
from outrider.data.features.write_store import Captured, write_store
from outrider.data.privacy.regenerate import asked_rows, regenerate
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.split import ids_of
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, LoggedRow, open_engine
from outrider.serving.in_process import in_process
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, FeatureSpec, layer_index

SUMMARY = "summary.json"
SCORES_VERSION = 1
"""Raise it when the same tokens give different scores (serving/token_scores.py, logged_text.py)."""
ONLY_FINAL = FeatureSpec(())
"""No stream besides the teacher's."""


def capture(
    target: TargetConfig,
    sequences_dir: Tables,
    parts: dict[str, Any],
    capture: CaptureConfig,
    engine: EngineConfig,
    out_dir: Path,
    features: FeatureSpec = ONLY_FINAL,
    cluster: ClusterConfig | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Captures every sequence of every part: the final state, and the streams of `features`.

    For drafters of several kinds, `features` is the union of what they read. With an address,
    `cluster` captures on replicas (replicas.py); the store has the same bytes. `only`: the
    sequences that are stored, with the states that they have in a store of all. Returns counts,
    speed and the checks, which summary.json holds too.
    """
    out_dir, target_dir = Path(out_dir), target.directory()
    target_config = read_json(target_dir / "config.json")
    spec = features.stored(target_config["hidden_size"])
    _check_streams(spec, target_config, engine)
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
    if only is not None:
        source["only"] = value_digest(sorted(only))
    if lengths.cut or lengths.dropped:
        source["too_long"] = {"capture.too_long": capture.too_long, "limit": lengths.limit}
        Console(stderr=True).print(lengths.describe(), highlight=False, soft_wrap=True)
    if (out_dir / SUMMARY).exists() and _finished(out_dir, source, spec, capture.dtype):
        return read_json(out_dir / SUMMARY)
    for change in in_process(engine)[1]:
        Console(stderr=True).print(f"capture: {change}", highlight=False, soft_wrap=True)
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_disk(out_dir, _tokens(_rows(table, lengths.limit), only), spec, capture.dtype)
    if cluster is not None and cluster.address is not None:
        with open_cluster(cluster) as session:
            return capture_on_replicas(
                session,
                cluster,
                target,
                engine,
                table,
                source,
                capture,
                out_dir,
                lengths,
                spec,
                only,
            )
    with open_engine(target, engine, scratch=out_dir) as live:
        head = load_target_ends(target_dir).lm_head_VH
        return capture_table(live, table, head, source, capture, out_dir, lengths, features, only)


def capture_table(
    engine: Engine,
    table: Dataset,
    lm_head_VH: torch.Tensor,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
    lengths: LostEnds | None = None,
    features: FeatureSpec = ONLY_FINAL,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Regenerates responses that the table marks, checks a spread sample, captures the table.

    `lengths` goes into the summary. `only`: the sequences that are stored.
    """
    console, limit = Console(stderr=True), longest(engine.max_model_len)
    answers = regenerate(engine, asked_rows(table), out_dir, source, capture.batch_tokens)
    checked = _checked(table, limit, capture, answers)
    check = self_check(engine, checked, lm_head_VH)
    console.print(check.describe(), highlight=False, soft_wrap=True)
    require(check, capture)
    checks: dict[str, Any] = {"self_check": check.as_dict()}
    model = engine.llm.llm_engine.model_config
    spec = features.stored(model.get_hidden_size())
    if spec.auxiliary:
        of_layers = layer_check(engine, checked, spec, *norm_and_layers(Path(model.model)))
        console.print(of_layers.describe(), highlight=False, soft_wrap=True)
        require_layers(of_layers)
        checks["layer_check"] = of_layers.as_dict()
    tokens = _tokens(_rows(table, limit, answers), only)

    def states(plan: Iterator[Piece]) -> Iterator[Captured]:
        rows, sent = itertools.tee(row for piece in plan for row in piece.rows)
        captured = engine.prefill_logged(
            sent, spec.names, capture.on_policy_positions, capture.batch_tokens
        )
        return zip(rows, captured, strict=True)

    rows = _rows(table, limit, answers)
    began = time.monotonic()
    captured = write_store(
        spec, states, rows, tokens, out_dir, source, capture, console, COLUMNS, only
    )
    return _summary(out_dir, tokens, captured, began, len(answers), checks, lengths)


def capture_on_replicas(
    session: ClusterSession,
    cluster: ClusterConfig,
    target: TargetConfig,
    engine: EngineConfig,
    table: Dataset,
    source: dict[str, Any],
    capture: CaptureConfig,
    out_dir: Path,
    lengths: LostEnds,
    spec: FeatureSpec,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """As `capture_table`, with an engine and a self-check in each replica.

    The answers to regenerate come from one replica, and the self-check's rows have logged answers.
    """
    console, limit = Console(stderr=True), lengths.limit
    setup = ReplicaSetup(
        target, engine, capture, spec, tuple(_checked(table, limit, capture)), in_memory=False
    )
    longest_row = max(min(len(token_ids), limit) for token_ids in table["token_ids"])
    piece_tokens = max(capture.batch_tokens, longest_row)
    in_flight = session.in_flight_bytes(cluster)
    with Replicas(session, cluster, setup, piece_tokens, console) as replicas:
        answers = regenerate(replicas, asked_rows(table), out_dir, source, capture.batch_tokens)
        tokens = _tokens(_rows(table, limit, answers), only)

        def states(plan: Iterator[Piece]) -> Iterator[Captured]:
            for piece, rows in replicas.stream(plan, in_flight):
                yield from zip(piece.rows, rows, strict=True)

        rows, marks = _rows(table, limit, answers), replicas.watermarks
        began = time.monotonic()
        captured = write_store(
            spec,
            states,
            rows,
            tokens,
            out_dir,
            source,
            capture,
            console,
            COLUMNS,
            only,
            marks.describe,
        )
        ready = {replica.name: replica.checks for replica in replicas.running()}
        checks = {"replicas": ready, "cluster": dataclasses.asdict(marks)}
    return _summary(out_dir, tokens, captured, began, len(answers), checks, lengths)


def _checked(
    table: Dataset,
    limit: int,
    capture: CaptureConfig,
    answers: Mapping[str, np.ndarray] | None = None,
) -> list[Row]:
    """A sample of rows for the self-check, spread over the table."""
    sample = np.linspace(
        0, len(table) - 1, min(capture.self_check_sequences, len(table)), dtype=int
    )
    return [row[:3] for row in _rows(table.select(sample), limit, answers)]


def _summary(
    out_dir: Path,
    tokens: int,
    captured: int,
    began: float,
    regenerated: int,
    checks: dict[str, Any],
    lengths: LostEnds | None,
) -> dict[str, Any]:
    seconds = time.monotonic() - began
    store = FeatureStore.open(out_dir)
    summary = {
        "sequences": len(store.sequence_ids),
        "tokens": tokens,
        "regenerated": regenerated,
        "bytes": sum(shard["bytes"] for shard in store.manifest["shards"]),
        "shards": len(store.manifest["shards"]),
        "tokens_captured_now": captured,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(captured / seconds, 1),
        **checks,
        "too_long": lengths._asdict() if lengths else None,
    }
    write_json(out_dir / SUMMARY, summary, private=True)
    return summary


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
    source, capture = {"sequences": _rows_digest(rows)}, capture or CaptureConfig()
    spec = features.stored(engine.llm.llm_engine.model_config.get_hidden_size())

    def states(plan: Iterator[Piece]) -> Iterator[Captured]:
        rows, sent = itertools.tee(row for piece in plan for row in piece.rows)
        prompts = ((row.row_id, row.token_ids) for row in sent)
        for row, (row_id, by_name) in zip(
            rows, engine.prefill_streams(prompts, spec.names, capture.batch_tokens), strict=True
        ):
            yield row, (row_id, by_name, None)

    if not _finished(out_dir, source, spec, capture.dtype):
        tokens = sum(len(token_ids) for _, token_ids, _ in rows)
        unsampled = (LoggedRow(*row, temperature=1.0, top_p=1.0) for row in rows)
        write_store(spec, states, unsampled, tokens, out_dir, source, capture, Console(stderr=True))
    return FeatureStore.open(out_dir)


def _tokens(rows: Iterable[LoggedRow], only: Collection[str] | None) -> int:
    return sum(len(row.token_ids) for row in rows if only is None or row.row_id in only)


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


def _finished(out_dir: Path, source: dict[str, Any], spec: FeatureSpec, dtype: StateDtype) -> bool:
    """Whether a whole store of the same source is there, with these streams or more."""
    if not (Path(out_dir) / MANIFEST).exists():
        return False
    store = FeatureStore.open(out_dir)
    return (
        store.manifest["source"] == source
        and store.manifest["dtype"] == STORED_AS[dtype]
        and set(spec.streams) <= set(store.spec.streams)
    )


def _check_streams(spec: FeatureSpec, target_config: dict[str, Any], engine: EngineConfig) -> None:
    """Raises an `OutriderError` for a stream that this target or this engine does not have."""
    hidden_size, layers = target_config["hidden_size"], target_config["num_hidden_layers"]
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
            f" {', '.join(spec.names[1:])} of the target, and in vLLM 0.32 the last pipeline stage"
            " has its own layers only; use tensor_parallel, or train a kind that reads"
            f" {FINAL_NORM} only"
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
