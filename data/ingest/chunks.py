"""Chunks of a log, and the parts that the ingest's workers make of them.

A part is `NUMBER.arrow` (sequences, `SCHEMA`) and `NUMBER.json` (counts and rejects). The
JSON is written last and marks the part as finished; a rerun skips it. A part depends on its chunk
alone, so the result is the same for any number of workers and interruptions.

    work = ChunkWork(target_dir, {"log.jsonl": 0}, None, PrivacyConfig(), None, Path("parts"))
    work.do(Chunk(0, "openai_pairs", records))
"""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from outrider.common.files import publish, write_json
from outrider.common.fingerprint import value_digest
from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats import parse_record
from outrider.data.ingest.tally import Tally
from outrider.data.privacy.guard import PrivacyGuard
from outrider.data.privacy.tally import PrivacyTally
from outrider.data.tokenize.tokens import SequenceBuilder, TokenSequence

CHUNK_BYTES = 4 * 2**20
CHUNK_RECORDS = 1000
"""A chunk ends at the first of the two limits: some seconds of work, and little to lose or hold."""

ROUND_TRIPS = (200, 10)
"""Exact sequences of the first and of every later chunk whose text is retokenized. The share that
agrees tells how reliable retokenized sequences are."""

CONVERSATION, USER, FIRST_QUESTION = SESSION_KINDS = ("conversation", "user", "first_question")
"""What a session's name identifies: a logged conversation; a user, where no conversation was
logged; without either, the exchanges that begin with the same first question."""

SCHEMA = pa.schema(
    {
        "sequence_id": pa.string(),
        "session": pa.string(),
        "session_kind": pa.string(),
        "tenant": pa.string(),
        "route": pa.string(),
        "model": pa.string(),
        "time": pa.float64(),
        "token_ids": pa.list_(pa.int32()),
        "completion_start": pa.int32(),
        "fidelity": pa.string(),
        "finish_reason": pa.string(),
        "temperature": pa.float32(),
        "top_p": pa.float32(),
        "top_k": pa.int32(),
        "weight": pa.float32(),
        "prompt_text": pa.string(),
    }
)
"""Columns of the table of sequences.

`session_kind` is what `session` identifies (`SESSION_KINDS`). `time` is in Unix seconds, null where
it was not logged. Other values that were not logged are empty text."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one format."""

    number: int
    format: str
    items: list[Record | Reject]


@dataclass(frozen=True)
class Part:
    """What a worker makes of a chunk."""

    table: bytes
    """Sequences as an Arrow stream of `SCHEMA`."""
    facts: dict[str, Any]
    """Counts and rejects, for the JSON file."""

    def write(self, parts_dir: Path, number: int) -> None:
        """Writes the files of the part, the JSON last."""
        path = part_path(parts_dir, number)
        with publish(path.with_suffix(".arrow")) as temporary:
            temporary.write_bytes(self.table)
        write_json(path, self.facts)


def chunks_of(records: Iterable[tuple[str, Record | Reject]]) -> Iterator[Chunk]:
    """Groups records, each with the name of its format, into chunks."""
    number, size, current = 0, 0, ""
    items: list[Record | Reject] = []
    for name, item in records:
        if items and (name != current or size >= CHUNK_BYTES or len(items) >= CHUNK_RECORDS):
            yield Chunk(number, current, items)
            number, size, items = number + 1, 0, []
        current = name
        items.append(item)
        size += _size(item.payload) if isinstance(item, Record) else 0
    if items:
        yield Chunk(number, current, items)


def _size(payload: Any) -> int:
    if isinstance(payload, bytes | str):
        return len(payload)
    if isinstance(payload, dict):
        return sum(map(_size, payload.values()))
    return sum(map(_size, payload)) if isinstance(payload, list | tuple) else 8


def part_path(parts_dir: Path, number: int) -> Path:
    """Path of a part's JSON file; its table has the same name with .arrow."""
    return parts_dir / f"{number:06d}.json"


class ChunkWork:
    """Makes parts for one target. One per process: its tokenizer loads slowly."""

    def __init__(
        self,
        target_dir: Path,
        file_numbers: dict[str, str],
        models: list[str] | None,
        privacy: PrivacyConfig,
        key: bytes | None,
        parts_dir: Path,
    ):
        """`key`: of the surrogates (`guard.surrogate_key`)."""
        self.builder = SequenceBuilder(target_dir)
        self.guard = None
        if privacy.mode != "off":
            self.guard = PrivacyGuard(privacy, key, decode=self.builder.decode)
        self.file_numbers = file_numbers
        self.models = None if models is None else {model_label(name) for name in models}
        self.parts_dir = parts_dir

    def do(self, chunk: Chunk) -> None:
        """Makes and stores the part of a chunk."""
        self.make(chunk).write(self.parts_dir, chunk.number)

    def make(self, chunk: Chunk) -> Part:
        """Makes the part of a chunk."""
        tally = Tally()
        if self.guard:
            self.guard.tally = PrivacyTally()
        rows: list[dict[str, Any]] = []
        rejects: list[Reject] = []
        round_trips = ROUND_TRIPS[min(chunk.number, 1)]
        for item in chunk.items:
            tally.rows += item.rows
            tally.formats[chunk.format] += item.rows
            outcomes = [item] if isinstance(item, Reject) else parse_record(chunk.format, item)
            if isinstance(item, Record):
                tally.joined += item.rows - 1
                tally.extra_choices += len(outcomes) - 1
            for outcome in outcomes:
                try:
                    if isinstance(outcome, Reject):
                        raise outcome
                    if self.models is not None and model_label(outcome.model) not in self.models:
                        raise Reject("other_model")
                    guarded = self.guard.apply(outcome) if self.guard else outcome
                    if isinstance(guarded, Reject):
                        raise guarded
                    outcome = guarded
                    sequence = self.builder.build(outcome)
                except Reject as reject:
                    reject.place = reject.place or outcome.place
                    tally.rejects[reject.reason] += reject.rows
                    rejects.append(reject)
                    continue
                tally.add(outcome, sequence)
                if sequence.fidelity == "exact" and tally.round_trips.total() < round_trips:
                    self._compare_round_trip(outcome, sequence, tally)
                rows.append(self._table_row(outcome, sequence))
        if tally.lost():
            raise AssertionError(
                f"chunk {chunk.number}: {tally.lost()} rows are neither exchanges nor rejects"
            )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as table:
            table.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
        facts = {"tally": tally.to_json(), "rejects": [_reject_line(reject) for reject in rejects]}
        if self.guard:
            facts["privacy"] = self.guard.tally.to_json()
        return Part(sink.getvalue().to_pybytes(), facts)

    def _table_row(self, exchange: Exchange, sequence: TokenSequence) -> dict[str, Any]:
        place, choice = exchange.place, f"-{exchange.choice}" if exchange.choice else ""
        session, session_kind = _session(exchange, sequence.prompt_text)
        return {
            "sequence_id": f"{self.file_numbers[place.file]}-{place.line}{choice}",
            "session": session,
            "session_kind": session_kind,
            "tenant": exchange.tenant or "",
            "route": exchange.route or "",
            "model": exchange.model or "",
            "time": exchange.time,
            "token_ids": np.asarray(sequence.token_ids, np.int32),
            "completion_start": sequence.completion_start,
            "fidelity": sequence.fidelity,
            "finish_reason": exchange.finish_reason,
            "temperature": sequence.temperature,
            "top_p": sequence.top_p,
            "top_k": sequence.top_k,
            "weight": exchange.weight,
            "prompt_text": sequence.prompt_text,
        }

    def _compare_round_trip(
        self, exchange: Exchange, sequence: TokenSequence, tally: Tally
    ) -> None:
        try:
            again = self.builder.retokenize(exchange, sequence.prompt_text)
        except Reject:  # the ids were logged without text
            return
        tally.round_trips[
            "equal" if again == sequence.token_ids[sequence.completion_start :] else "different"
        ] += 1


def model_label(name: str | None) -> str:
    """Model name without path, in lower case: `deepseek-ai/DeepSeek-R1` is `deepseek-r1`."""
    return (name or "").rstrip("/").rpartition("/")[2].lower()


def _session(exchange: Exchange, prompt_text: str) -> tuple[str, str]:
    """Name and kind of the session."""
    if exchange.session:
        return exchange.session, CONVERSATION
    if exchange.user:
        return exchange.user, USER
    return _conversation(exchange, prompt_text), FIRST_QUESTION


def _conversation(exchange: Exchange, prompt_text: str) -> str:
    """Session id where none was logged.

    The turns of a conversation agree up to its first user message.
    """
    beginning: Any = prompt_text
    if exchange.messages is not None:
        users = [
            index for index, message in enumerate(exchange.messages) if message["role"] == "user"
        ]
        beginning = [
            message["content"] for message in exchange.messages[: users[0] + 1 if users else None]
        ]
    return "conversation-" + value_digest(beginning)[:16]


def _reject_line(reject: Reject) -> dict[str, Any]:
    assert reject.place is not None
    line = {
        "file": reject.place.file,
        "line": reject.place.line,
        "reason": reject.reason,
        "detail": reject.detail,
    }
    return line if reject.rows == 1 else {**line, "rows": reject.rows}


class _Worker:
    """State of a worker process."""

    arguments: tuple[Any, ...] = ()
    work: ChunkWork | None = None


def start_worker(*arguments: Any) -> None:
    """Initializes a worker process.

    `ChunkWork` is created with the first chunk, so that its errors reach the caller.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the main process stops the workers
    _without_torch()
    _Worker.arguments = arguments


def do_chunk(chunk: Chunk) -> None:
    """`ChunkWork.do` in a worker process."""
    if _Worker.work is None:
        _Worker.work = ChunkWork(*_Worker.arguments)
    _Worker.work.do(chunk)


def make_part(arguments: tuple[Any, ...], chunk: Chunk) -> Part:
    """`ChunkWork.make` in a task, whose process keeps the tokenizer for the next one."""
    if _Worker.work is None or _Worker.arguments != arguments:
        _without_torch()
        _Worker.work, _Worker.arguments = ChunkWork(*arguments), arguments
    return _Worker.work.make(chunk)


def _without_torch() -> None:
    # A tokenizer does not need torch, which is most of the time (8 of 10 s) and memory (400 MB) of
    # importing transformers.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it would print that torch is missing
    # Its threads would compete with the other workers.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
