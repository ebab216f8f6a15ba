"""Captures the target's hidden states from vLLM's prefill into a feature store.

It first truncates sequences that are too long (capture_plan.py) and checks that the disk has room
for the states, then checks the states themselves (engine_checks.py). An interrupted capture resumes
after its last complete shard; a different target or different sequences restart it. Responses that
are regenerated or added are sampled before the capture (answers.py). The engine also scores every
completion under the target, for the on-policy check (on_policy/).

    capture(
        TargetConfig(), "run/traffic/sequences", parts, CaptureConfig(), EngineConfig(), out_dir=out
    )
"""

import dataclasses
import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import Progress

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import sampled_digest
from outrider.common.json_forms import Anything, read_object
from outrider.data.config import CaptureConfig, bytes_per_token
from outrider.data.features.answers import (
    FURTHER,
    REGENERATED,
    Answer,
    Answers,
    further_rows,
    regenerated_rows,
    requests_digest,
    stored_answers,
)
from outrider.data.features.capture_plan import (
    CaptureBatch,
    CapturePlan,
    capture_batch_tokens,
    capture_batches,
    capture_rows,
    drop_overlong_rows,
    expected_tokens,
    state_bytes,
    unfinished_batches,
)
from outrider.data.features.engine_checks import EngineChecks, Row, check_engine
from outrider.data.features.feature_store import FeatureStore, Source
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.features.replica import ReplicaSetup
from outrider.data.features.replicas import Replicas, start_replicas
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.split import PREFIX, ids_of
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, Engine, LoggedRow, in_process, open_engine
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.checkpoints.model_config import read_config, read_generation
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec, SequenceStates, layer_index

if TYPE_CHECKING:
    from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks

SUMMARY = "summary.json"
SCORES_VERSION = 4
"""Increment when scores of the same tokens change (serving/token_scores.py, logged_text.py)."""
LINE_EVERY_S = 30.0
"""Seconds between lines of progress if the output is not a terminal."""
ONLY_FINAL = FeatureSpec(())
"""Only the stream after the final norm, which the teacher's head reads."""

Prefill = Callable[[Iterator[CaptureBatch]], Iterator[tuple[LoggedRow, SequenceStates]]]
"""Captures the rows of pieces, in order."""


class CaptureSummary(EngineChecks, total=False):
    """Counts, speed and checks of a capture, the content of summary.json."""

    sequences: int
    tokens: int
    bytes: int
    shards: int
    tokens_captured_now: int
    """Without those of an earlier, interrupted capture."""
    seconds: float
    tokens_per_s: float
    regenerated: int
    further_answers: int
    """Answers to training prompts that were added to the log's (`capture.answers_up_to`)."""
    too_long: dict[str, object] | None
    """Counts of truncated sequences (`LostEnds`)."""
    replicas: Mapping[str, object]
    """Host and checks of each replica; this and the next two only with `cluster.address`."""
    lost_replicas: int
    left_out: list[str]
    """Replicas that failed to start, with the reason."""


def capture(
    target: TargetConfig,
    sequences_dir: Tables,
    parts: Mapping[str, list[str]],
    capture: CaptureConfig,
    engine: EngineConfig,
    *,
    out_dir: Path,
    features: FeatureSpec = ONLY_FINAL,
    cluster: ClusterConfig | None = None,
) -> CaptureSummary:
    """Captures the final state and the streams of `features` for all parts.

    For drafters of several kinds, `features` is the union of the streams that they read. If
    `cluster` has an address, replicas do the work (replicas.py) and produce an identical store.
    """
    console = Console(stderr=True, highlight=False)
    target_dir = target.directory()
    plan = _plan_of(
        table=load_sequences(sequences_dir, ids_of(parts)),
        train=parts.get("train", []),
        target_dir=target_dir,
        capture=capture,
        engine=engine,
        out_dir=Path(out_dir),
        features=features,
    )
    if plan.lost_ends and (plan.lost_ends.cut or plan.lost_ends.dropped):
        console.print(plan.lost_ends.describe(), soft_wrap=True)
    # The summary is written after the manifest, so both exist only after a whole capture.
    if (plan.out_dir / SUMMARY).exists() and plan.is_finished():
        fix = f"delete {plan.out_dir} and capture again"
        earlier: CaptureSummary = read_object(Anything, plan.out_dir / SUMMARY, fix)
        return earlier
    for change in in_process(engine)[1]:
        console.print(f"capture: {change}", soft_wrap=True)
    plan.out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_disk(plan)
    if cluster is not None and cluster.address is not None:
        return _capture_on_replicas(plan, target, engine, cluster)
    # Before the engine, which takes minutes to start: a head in another format is refused.
    lm_head_VH = load_target_ends(target_dir).lm_head_VH
    console.print("starting the engine")
    with open_engine(target, engine, scratch=plan.out_dir) as live:
        return capture_in_process(plan, live, lm_head_VH)


def _plan_of(
    *,
    table: Dataset,
    train: list[str],
    target_dir: Path,
    capture: CaptureConfig,
    engine: EngineConfig,
    out_dir: Path,
    features: FeatureSpec,
) -> CapturePlan:
    """Plans the capture of a table: which rows, which states, and what identifies both."""
    target_config = read_config(target_dir / "config.json")
    spec = features.stored(target_config["hidden_size"])
    _check_streams(spec, target_config)
    table, lost_ends = drop_overlong_rows(table, engine.max_model_len)
    target_files = [target_dir / "config.json", *sorted(target_dir.glob("*.safetensors"))]
    source: Source = {
        "target": sampled_digest(target_files),
        "sequences": _rows_digest(capture_rows(table, lost_ends.limit)),
        "dtype": engine.dtype,
        "scores": {
            "version": SCORES_VERSION,
            "positions": capture.on_policy_positions,
            "structured_outputs": engine.structured_outputs,
        },
    }
    if lost_ends.cut or lost_ends.dropped:
        source["too_long"] = {"limit": lost_ends.limit}
    further = further_rows(
        table=table,
        train=[name for name in train if not name.startswith(PREFIX)],
        up_to=capture.answers_up_to,
        limit=lost_ends.limit,
        end_ids=_end_ids(target_dir, target_config),
        compiles=_compiles_in(target_dir, target_config["vocab_size"], engine),
    )
    if further:
        source["further_answers"] = requests_digest(further)
    return CapturePlan(
        table=table,
        limit=lost_ends.limit,
        spec=spec,
        source=source,
        settings=capture,
        out_dir=out_dir,
        score_columns=COLUMNS,
        further=further,
        lost_ends=lost_ends,
    )


def _end_ids(target_dir: Path, config: Mapping[str, object]) -> set[int]:
    """Returns the tokens with which the target ends a response."""
    generation = target_dir / "generation_config.json"
    configs = [config, read_generation(generation) if generation.is_file() else {}]
    end_ids: set[int] = set()
    for one in configs:
        ids = one.get("eos_token_id")
        listed = ids if isinstance(ids, list) else [ids]
        end_ids |= {token for token in listed if isinstance(token, int)}
    return end_ids


def _compiles_in(target_dir: Path, vocabulary: int, engine: EngineConfig) -> Callable[[str], bool]:
    """Returns the function that tells whether vLLM compiles a grammar."""

    @functools.cache  # vLLM's import takes seconds, and few logs have grammars
    def masks() -> "GrammarMasks":
        from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks

        return GrammarMasks(target_dir, vocabulary, engine.structured_outputs)

    return lambda grammar: masks().compiles(grammar)


def capture_in_process(
    plan: CapturePlan, engine: Engine, lm_head_VH: torch.Tensor
) -> CaptureSummary:
    """Captures a plan with a running engine, after checking its states on a sample."""
    checks, in_words = check_engine(
        engine=engine,
        rows=plan.sample(),
        spec=plan.spec,
        lm_head_VH=lm_head_VH,
        target_dir=Path(engine.llm.llm_engine.model_config.model),
    )
    Console(stderr=True).print(in_words, highlight=False, soft_wrap=True)
    summary = _capture(plan, _prefill_of(engine, plan), engine.answer)
    summary.update(checks)
    _write_summary(plan, summary)
    return summary


def _capture_on_replicas(
    plan: CapturePlan, target: TargetConfig, engine: EngineConfig, cluster: ClusterConfig
) -> CaptureSummary:
    """Like `capture_in_process`, with an engine and its checks in each replica."""
    setup = ReplicaSetup(
        target=target,
        engine=engine,
        capture=plan.settings,
        spec=plan.spec,
        checked=tuple(plan.sample()),
        in_memory=False,
        piece_tokens=max(
            [
                capture_batch_tokens(plan.table, plan.limit, plan.settings.batch_tokens),
                *(len(row.token_ids) + row.max_tokens for row in plan.further),
            ]
        ),
    )
    with open_cluster(cluster) as session, start_replicas(cluster, setup) as (_, actors):
        replicas = Replicas(actors, state_bytes(plan.spec), cluster.start_timeout_s)
        in_flight = session.in_flight_bytes(cluster)

        def prefill(batches: Iterator[CaptureBatch]) -> Iterator[tuple[LoggedRow, SequenceStates]]:
            for piece, states in replicas.stream(batches, in_flight):
                yield from zip(piece.rows, states, strict=True)

        summary = _capture(plan, prefill, replicas.answer)
        summary["replicas"] = replicas.running
        summary["lost_replicas"] = replicas.lost
        summary["left_out"] = replicas.left_out
        _write_summary(plan, summary)
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
    longest = max((len(token_ids) for _, token_ids, _ in rows), default=0)
    hidden_size = engine.llm.llm_engine.model_config.get_hidden_size()
    plan = CapturePlan(
        table=_table_of(rows),
        limit=longest,
        spec=features.stored(hidden_size),
        source={"sequences": _rows_digest(rows)},
        settings=capture or CaptureConfig(),
        out_dir=out_dir,
    )
    if not plan.is_finished():
        _write_store(plan, _prefill_of(engine, plan))
    return FeatureStore.open(out_dir)


def _table_of(rows: Sequence[Row]) -> Dataset:
    """A table of rows without sampling parameters, which only scores depend on."""
    return Dataset.from_dict(
        {
            "sequence_id": [row_id for row_id, _, _ in rows],
            "token_ids": [list(token_ids) for _, token_ids, _ in rows],
            "completion_start": [completion_start for _, _, completion_start in rows],
            "temperature": [1.0] * len(rows),
            "top_p": [1.0] * len(rows),
            "top_k": [0] * len(rows),
            "grammar": [""] * len(rows),
        }
    )


def _prefill_of(engine: Engine, plan: CapturePlan) -> Prefill:
    """Captures with one engine; it also scores completions if the plan has scores."""
    positions = plan.settings.on_policy_positions if plan.score_columns else None

    def prefill(batches: Iterator[CaptureBatch]) -> Iterator[tuple[LoggedRow, SequenceStates]]:
        rows = (row for piece in batches for row in piece.rows)
        return engine.prefill(rows, plan.spec.names, plan.settings.batch_tokens, positions)

    return prefill


def _capture(plan: CapturePlan, prefill: Prefill, answer: Answer) -> CaptureSummary:
    """Has the target answer with `answer` where it is to answer again, then captures all rows."""

    def answered(rows: Sequence[AskedRow], file: str) -> Answers:
        return stored_answers(
            answer=answer,
            rows=rows,
            path=plan.out_dir / file,
            source=plan.source,
            batch_tokens=plan.settings.batch_tokens,
        )

    # Before the states, since the answers replace logged ones or are captured with them.
    regenerated = answered(regenerated_rows(plan.table), REGENERATED)
    further = answered(plan.further, FURTHER)
    summary = _write_store(dataclasses.replace(plan, answers=regenerated | further), prefill)
    summary["regenerated"] = len(regenerated)
    summary["further_answers"] = len(further)
    return summary


def _write_summary(plan: CapturePlan, summary: CaptureSummary) -> None:
    summary["too_long"] = plan.lost_ends._asdict() if plan.lost_ends else None
    write_json(plan.out_dir / SUMMARY, summary, private=True)


def _write_store(plan: CapturePlan, prefill: Prefill) -> CaptureSummary:
    """Captures the rows that the store lacks; returns counts and speed."""
    console = Console(stderr=True)
    total = sum(len(row.token_ids) for row in plan.rows())
    captured = 0
    prefilled = 0
    with (
        FeatureWriter(
            directory=plan.out_dir,
            spec=plan.spec,
            source=plan.source,
            shard_megabytes=plan.settings.shard_megabytes,
            score_columns=plan.score_columns,
            dtype=plan.settings.dtype,
        ) as writer,
        Progress(console=console, transient=True) as progress,
    ):
        _print_start(writer, plan.out_dir, console)
        task = progress.add_task("capture", total=total, completed=writer.tokens)
        lines = _ProgressLines(console, total)
        began = time.monotonic()
        done = frozenset(writer.done)
        batches = capture_batches(plan.rows(), plan.settings.batch_tokens)
        for row, states in prefill(unfinished_batches(batches, done)):
            prefilled += len(row.token_ids)
            # A piece is captured as a whole, although some of its rows may be stored already.
            if row.row_id not in done:
                writer.write(row.row_id, states)
                captured += len(row.token_ids)
                progress.update(task, completed=writer.tokens)
            lines.report(writer.tokens, prefilled)
    seconds = time.monotonic() - began
    return {
        "sequences": len(writer.done),
        "tokens": total,
        "bytes": sum(shard.bytes for shard in writer.shards),
        "shards": len(writer.shards),
        "tokens_captured_now": captured,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(captured / seconds, 1),
    }


def _print_start(writer: FeatureWriter, out_dir: Path, console: Console) -> None:
    """States whether the capture starts over or resumes; prints nothing for a new store."""
    if writer.restarted:
        console.print(
            f"{out_dir}: states of another target or of other sequences; capturing again",
            soft_wrap=True,
        )
    elif writer.done:
        console.print(
            f"{out_dir}: resumes after {len(writer.done)} captured sequences", soft_wrap=True
        )


class _ProgressLines:
    """Prints a line of progress every minute if the output is not a terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._last_s: float | None = None
        self._last_prefilled = 0

    def report(self, stored: int, prefilled: int) -> None:
        """Prints a line if it is time.

        `stored` counts tokens of earlier captures too; `prefilled` those of this one, with what was
        stored before.
        """
        now = time.monotonic()
        if self._last_s is None:
            # Rates count from the first row: a batch's rows arrive together, the first ones late.
            self._last_s = now
            self._last_prefilled = prefilled
        elif not self._console.is_terminal and now >= self._last_s + LINE_EVERY_S:
            rate = (prefilled - self._last_prefilled) / (now - self._last_s)
            self._last_s = now
            self._last_prefilled = prefilled
            self._console.print(
                f"captured {stored:,} of {self._total:,} tokens, {rate:,.0f} tokens/s, about"
                f" {(self._total - stored) / rate / 60:.0f} min left",
                soft_wrap=True,
            )


def _check_streams(spec: FeatureSpec, target_config: Mapping[str, int]) -> None:
    """Raises an `OutriderError` if the target lacks a stream."""
    hidden_size = target_config["hidden_size"]
    layers = target_config["num_hidden_layers"]
    for stream in spec.auxiliary:
        if not 1 <= layer_index(stream.name) <= layers or stream.width != hidden_size:
            raise OutriderError(
                f"the speculator reads {stream.name} ({stream.width} values) of the target, which"
                f" has layer_1 to layer_{layers} ({hidden_size} values each); choose a speculator"
                " that was made for this target"
            )


def _check_disk(plan: CapturePlan) -> None:
    """Checks that the disk has room for the remaining states plus 2 %.

    A further answer is assumed to be as long as the logged one.
    """
    out_dir = plan.out_dir
    spec = plan.spec
    dtype = plan.settings.dtype
    tokens = expected_tokens(plan)
    stored = sum(path.stat().st_size for path in out_dir.glob("shard-*.safetensors"))
    total = int(1.02 * tokens * bytes_per_token(spec.width, dtype, len(spec.streams)))
    needed = total - stored
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
