"""Splits a log into chunks and converts each to a part.

A part is `NUMBER.arrow` (sequences, `PART_SCHEMA`) and `NUMBER.json` (counts, rejects). The JSON is
written last and marks the part as finished; a rerun skips finished parts. A part depends only on
its chunk, so its bytes do not depend on the process that writes it or on interruptions.

    work = Work(target_dir, None, PrivacyConfig(), key, parts_dir, {"log.jsonl": "0"})
    chunks = chunks_of(records)
    for records in make_parts(chunks, work, workers=8): ...
"""

import contextlib
import dataclasses
import functools
import hmac
import multiprocessing
import os
import signal
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features
from pydantic import Field

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.common.fingerprint import value_digest
from outrider.data.config import PrivacyConfig
from outrider.data.exchange import (
    BEYOND_FIRST,
    CONVERSATION,
    FIRST_QUESTION,
    HALVES,
    NOT_GENERATIONS,
    USER,
    Exchange,
    Record,
    Reject,
    Sums,
)
from outrider.data.formats import WITH_OTHER_ROWS, parse_record
from outrider.data.formats.rows.named_fields import use_field_paths
from outrider.data.ingest.copies import COPY_KEYS, copy_keys
from outrider.data.ingest.incomplete import MISSING, MOST_MISSING
from outrider.data.privacy.guard import PrivacyGuard, PrivacyTally
from outrider.data.tokenize.masked import check_unmasked
from outrider.data.tokenize.tokens import SequenceBuilder, TokenSequence

CHUNK_RECORDS = 1000
"""Maximum number of records in a chunk (a few seconds of work); a chunk is also cut at 4 MB."""

SCHEMA: pa.Schema = Features.from_arrow_schema(
    pa.schema(
        {
            "sequence_id": pa.string(),
            "session": pa.string(),
            "session_kind": pa.string(),
            "user": pa.string(),
            "tenant": pa.string(),
            "route": pa.string(),
            "model": pa.string(),
            "time": pa.float64(),
            "seconds": pa.float64(),
            "token_ids": pa.list_(pa.int32()),
            "completion_start": pa.int32(),
            "fidelity": pa.string(),
            "finish_reason": pa.string(),
            "temperature": pa.float32(),
            "top_p": pa.float32(),
            "top_k": pa.int32(),
            "constraint": pa.string(),
            "grammar": pa.string(),
            "prompt_text": pa.string(),
        }
    )
).arrow_schema
"""Columns of the table of sequences.

`session_kind` is one of `SESSION_KINDS`. `user` is a keyed digest of the user's id or, if none
was logged, of the tenant; a session of kind `user` has the same digest. `time` is in Unix seconds
and `seconds` the request's duration, null if not logged. `constraint` is what else shaped the
tokens (exchange.SAMPLED_OTHERWISE), `grammar` the grammar if it is all that did. Other values that
were not logged are empty strings."""


PART_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("first_question", pa.string()),
        ("trace", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("prompt_agrees", pa.bool_()),
        ("completion_agrees", pa.bool_()),
        (MISSING, pa.int32()),
        *((name, pa.uint64()) for name in COPY_KEYS),
    ]
)
"""Columns of a part: those of the table, and what finds, counts and reports copies.

`first_question` is the session of a row whose user turns out to be everybody's (table.py); empty
for a row of a logged conversation.

The two agreements are those of retokenized prompts and completions with the engine's counts; null
if they were not retokenized or not counted. `missing_tokens`: incomplete.py."""


NOT_LOGGED = "not logged"
"""Name of a model, tenant or route that a row does not have, in counts."""


class Tally(Sums):
    """Counts of one chunk or of the whole log; part of `summary.json`."""

    rows: int = 0
    exchanges: int = 0
    joined: int = 0
    """Rows after the first of a record: the other half of an exchange, or chunks of a stream."""
    extra_choices: int = 0
    """Outcomes after the first of a record: further choices of a response."""
    formats: Counter[str] = Field(default_factory=Counter)
    """Rows by format."""
    rejects: Counter[str] = Field(default_factory=Counter)
    not_generations: int = 0
    """Rejected requests that failed or belong to another API; not the spans and lines of logs that
    record other things than requests."""
    with_user: int = 0
    """Exchanges with the id of a user, copies included."""
    models: Counter[str] = Field(default_factory=Counter)
    """Exchanges by model name, as logged."""
    prompt_tokens_against_usage: Counter[str] = Field(default_factory=Counter)
    """Prompts logged without ids, by length: `equal` to the engine's count, or `different`."""
    retokenized_against_usage: Counter[str] = Field(default_factory=Counter)
    """The same for retokenized completions."""

    sequences_against_usage: Counter[str] = Field(default_factory=Counter)
    """Sequences with one of these counts: `different` if prompt or completion differ."""

    def add(self, row: Mapping[str, Any], sign: int = 1) -> None:
        """Counts one exchange that became a row of a part, or takes it back with sign -1."""
        self.exchanges += sign
        self.models[row["model"] or NOT_LOGGED] += sign
        prompt = row["prompt_agrees"]
        completion = row["completion_agrees"]
        agreements = [agrees for agrees in (prompt, completion) if agrees is not None]
        for counts, agrees in (
            (self.prompt_tokens_against_usage, prompt),
            (self.retokenized_against_usage, completion),
            (self.sequences_against_usage, all(agreements) if agreements else None),
        ):
            if agrees is not None:
                counts["equal" if agrees else "different"] += sign

    def set_aside(self, row: Mapping[str, Any], reason: str) -> None:
        """Counts an exchange as rejected instead."""
        self.add(row, sign=-1)
        self.rejects[reason] += 1

    def add_reject(self, reject: Reject, format_name: str) -> None:
        """Counts a rejected row of a format."""
        self.rejects[reject.reason] += reject.rows
        has_requests_alone = format_name not in WITH_OTHER_ROWS and reject.is_request
        is_request = reject.reason == "error_response" or has_requests_alone
        if reject.reason in NOT_GENERATIONS and is_request:
            self.not_generations += reject.rows

    def excuse_halves(self) -> None:
        """Counts rejected halves as `BEYOND_FIRST`, since the other halves may follow."""
        excused = sum(self.rejects.pop(reason, 0) for reason in HALVES)
        if excused:
            self.rejects[BEYOND_FIRST] += excused

    def lost(self) -> int:
        """Rows without an outcome; a value other than 0 indicates a bug."""
        return self.rows + self.extra_choices - self.exchanges - self.rejects.total() - self.joined

    def summary(self) -> dict[str, Any]:
        """Returns the counts for `summary.json`, most frequent reasons and models first."""
        ranked = {name: dict(getattr(self, name).most_common()) for name in ("rejects", "models")}
        return self.model_dump() | ranked


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one format."""

    number: int
    format: str
    items: list[Record | Reject]


@dataclass(frozen=True)
class Work:
    """Makes the parts of an ingest; each process loads its own tokenizer."""

    target_dir: Path
    models: list[str] | None
    """Names of the models whose exchanges are kept; None keeps all."""
    privacy: PrivacyConfig
    key: bytes
    """Key for surrogates and users' digests (`guard.privacy_key`)."""
    parts_dir: Path
    file_numbers: dict[str, str]
    """Prefixes of sequence ids, by file name."""
    fields: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Paths of the recipe's `traffic.fields`."""
    server: str | None = None
    """The engine, if the recipe names it."""
    hard_labels: bool = True
    """Whether responses with a constraint are kept (`SequenceBuilder`)."""
    generation: Mapping[str, Any] | None = None
    """The engine's arguments about sampling (`tokens.sampling_defaults`)."""

    @functools.cached_property
    def builder(self) -> SequenceBuilder:
        """The sequence builder."""
        return SequenceBuilder(self.target_dir, self.hard_labels, self.generation)

    @functools.cached_property
    def guard(self) -> PrivacyGuard | None:
        """Guard against personal data; None if the recipe disables it."""
        if self.privacy.mode == "off":
            return None
        return PrivacyGuard(self.privacy, self.key, decode=self.builder.decode)

    def make(self, chunk: Chunk) -> int:
        """Writes a chunk's part unless it exists; returns its number of records."""
        if not part_path(self.parts_dir, chunk.number).exists():
            with use_field_paths(self.fields):
                self._make(chunk)
        return len(chunk.items)

    def _make(self, chunk: Chunk) -> None:
        tally = Tally()
        accepted_models = None if self.models is None else set(map(model_label, self.models))
        if self.guard:
            self.guard.tally = PrivacyTally()
        rows: list[dict[str, Any]] = []
        rejects: list[dict[str, Any]] = []
        for item in chunk.items:
            tally.rows += item.rows
            tally.formats[chunk.format] += item.rows
            outcomes = [item] if isinstance(item, Reject) else parse_record(chunk.format, item)
            if isinstance(item, Record):
                # A call whose messages are in rows of several calls has no row of its own.
                tally.joined += max(item.rows - 1, 0)
                tally.extra_choices += len(outcomes) - min(item.rows, 1)
            for outcome in outcomes:
                try:
                    has_model = outcome.model or isinstance(outcome, Exchange)
                    if (
                        accepted_models is not None
                        and has_model
                        and model_label(outcome.model) not in accepted_models
                    ):
                        raise Reject("other_model", rows=getattr(outcome, "rows", 1))
                    if isinstance(outcome, Reject):
                        raise outcome
                    if self.server == "sglang" and outcome.joined_by_sglang is not None:
                        outcome = dataclasses.replace(outcome, messages=outcome.joined_by_sglang)
                    outcome = self.guard.apply(outcome) if self.guard else outcome
                    sequence = self.builder.build(outcome)
                    check_unmasked(outcome, sequence)
                except Reject as reject:
                    place = reject.place or outcome.place
                    assert place is not None
                    tally.add_reject(reject, chunk.format)
                    line = {"reason": reject.reason, "detail": reject.detail}
                    rows_field = {"rows": reject.rows} if reject.rows > 1 else {}
                    rejects.append({**dataclasses.asdict(place), **line, **rows_field})
                    continue
                tally.with_user += bool(outcome.user)
                row = _table_row(outcome, sequence, self)
                tally.add(row)
                rows.append(row)
        facts = {
            "tally": tally.model_dump(),
            "rejects": rejects,
            "privacy": self.guard.tally.model_dump() if self.guard else {},
        }
        path = part_path(self.parts_dir, chunk.number)
        with (
            publish(path.with_suffix(".arrow")) as temporary,
            pa.ipc.new_stream(str(temporary), PART_SCHEMA) as table,
        ):
            table.write_batch(pa.RecordBatch.from_pylist(rows, PART_SCHEMA))
        write_json(path, facts)


def chunks_of(records: Iterable[tuple[str, Record | Reject]]) -> Iterator[Chunk]:
    """Groups pairs of format name and record into chunks."""
    chunk: Chunk | None = None
    size = 0
    for name, item in records:
        # 4 MB are a few seconds of work and little enough to pass to a worker.
        if chunk and (
            name != chunk.format or size >= 4 * 2**20 or len(chunk.items) >= CHUNK_RECORDS
        ):
            yield chunk
            chunk = Chunk(chunk.number + 1, name, [])
            size = 0
        chunk = chunk or Chunk(0, name, [])
        chunk.items.append(item)
        size += _size(item.payload) if isinstance(item, Record) else 0
    if chunk:
        yield chunk


def _size(payload: Any) -> int:
    if isinstance(payload, bytes | str):
        return len(payload)
    if isinstance(payload, dict):
        return sum(map(_size, payload.values()))
    return sum(map(_size, payload)) if isinstance(payload, list | tuple) else 8


def part_path(parts_dir: Path, number: int) -> Path:
    """Returns a part's JSON path; its table has the suffix .arrow instead."""
    return parts_dir / f"{number:06d}.json"


def _table_row(exchange: Exchange, sequence: TokenSequence, work: Work) -> dict[str, Any]:
    place = exchange.place
    number = exchange.call or exchange.choice
    suffix = f"-{number}" if number else ""
    user = exchange.user or exchange.tenant or ""
    # Keyed: without the key, nobody can test which user a digest belongs to.
    digest = user and "user-" + hmac.digest(work.key, user.encode(), "sha256").hex()[:16]
    session, session_kind = digest, USER
    first_question = ""
    if exchange.session:
        session = exchange.session
        session_kind = CONVERSATION
    else:
        beginning = sequence.prompt_text.partition(work.builder.answer_mark)[0]
        first_question = _conversation(exchange, beginning)
        if not exchange.user:
            session = first_question
            session_kind = FIRST_QUESTION
    is_prompt_retokenized = exchange.prompt_token_ids is None
    is_completion_retokenized = exchange.completion_token_ids is None
    missing = 0
    if is_completion_retokenized and not exchange.regenerate and exchange.completion_tokens:
        length = len(sequence.token_ids) - sequence.completion_start
        missing = min(exchange.completion_tokens - length, MOST_MISSING)
    return {
        "sequence_id": f"{work.file_numbers[place.file]}-{place.line}{suffix}",
        "session": session,
        "session_kind": session_kind,
        "user": digest,
        "tenant": exchange.tenant or "",
        "route": exchange.route or "",
        "model": exchange.model or "",
        "time": exchange.time,
        "seconds": exchange.seconds,
        "token_ids": np.asarray(sequence.token_ids, np.int32),
        "completion_start": sequence.completion_start,
        "fidelity": sequence.fidelity,
        "finish_reason": exchange.finish_reason,
        "temperature": sequence.temperature,
        "top_p": sequence.top_p,
        "top_k": sequence.top_k,
        "constraint": sequence.constraint,
        "grammar": sequence.grammar,
        "prompt_text": sequence.prompt_text,
        "first_question": first_question,
        "trace": "" if exchange.session else exchange.trace or "",
        "file": place.file,
        "line": place.line,
        "prompt_agrees": sequence.prompt_agrees_with_usage if is_prompt_retokenized else None,
        "completion_agrees": sequence.agrees_with_usage if is_completion_retokenized else None,
        MISSING: missing,
        **copy_keys(exchange, sequence),
    }


def model_label(name: str | None) -> str:
    """Strips a model's path and lowercases its name: `deepseek-ai/DeepSeek-R1` to `deepseek-r1`."""
    return (name or "").rstrip("/").rpartition("/")[2].lower()


def _conversation(exchange: Exchange, beginning: Any) -> str:
    """Derives a session id if none was logged.

    The turns of a conversation have the same messages up to the first user message, or, without
    logged messages, the same `beginning` of the rendered prompt up to the first answer.
    """
    if exchange.messages is not None:
        # Up to the first question: later messages differ between the requests of one conversation.
        roles = [message["role"] for message in exchange.messages]
        end = roles.index("user") + 1 if "user" in roles else None
        beginning = [message["content"] for message in exchange.messages[:end]]
    return "conversation-" + value_digest(beginning)[:16]


_started: list[Work] = []
"""The ingest's `Work`, in a worker process."""


def _start_worker(work: Work) -> None:
    # Ctrl-C reaches the whole process group; the main process stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A tokenizer does not need torch, which accounts for most of the time (8 of 10 s) and memory
    # (400 MB) of importing transformers.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # hides the warning about torch
    # A tokenizer's threads would compete with the other workers.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _started.append(work)


def _make_part(chunk: Chunk) -> int:
    """`Work.make` in a worker process."""
    return _started[0].make(chunk)


def make_parts(chunks: Iterable[Chunk], work: Work, workers: int) -> Iterator[int]:
    """Makes missing parts; yields the number of records per chunk, in order.

    Uses `workers` processes, or only this one if 0.
    """
    if not workers:
        yield from map(work.make, chunks)
        return
    # Workers are spawned, since this process has threads.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, _start_worker, (work,))
    running: deque[Future[int]] = deque()
    try:
        for chunk in chunks:
            with _empty_main():  # submitting starts a worker while there are too few
                running.append(pool.submit(_make_part, chunk))
            if len(running) > 2 * workers:  # limits the chunks in memory
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except BrokenProcessPool:
        ended = list(pool._processes.values())  # `shutdown` forgets them
        pool.shutdown()
        raise _worker_ended([process.exitcode for process in ended]) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _empty_main() -> Iterator[None]:
    """Hides the caller's script from processes that are spawned.

    They import `__main__` first. A script without `if __name__ == "__main__"` would run again in
    each worker, and start workers of its own. The workers need nothing of it.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _worker_ended(statuses: list[int | None]) -> OutriderError:
    """Builds the error for a pool with a worker that ended early."""
    # The pool ends the other workers with SIGTERM.
    status = next((status for status in statuses if status != -signal.SIGTERM), -signal.SIGTERM)
    ended = f"an ingest worker ended with exit status {status}"
    if status == -signal.SIGKILL:
        return OutriderError(
            f"{ended}: it was killed, most often because memory ran out; rerun the command to"
            " resume"
        )
    return OutriderError(f"{ended}; its message is above, or in the log of the stage")
