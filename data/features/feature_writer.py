"""Writes a feature store; an interrupted capture can resume.

    with FeatureWriter(directory, spec, source={"target": ...}) as writer:
        writer.write(sequence_id, states)

`journal.jsonl` has a header and one line for each finished shard; an interrupted capture resumes
after the last one. The manifest (feature_store.py) is written at the end. Only the index and one
shard are in memory, so memory use does not grow with the states.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors.torch import save

from outrider.common.files import publish
from outrider.common.fingerprint import file_digest
from outrider.common.json_forms import Count, parse_form
from outrider.data.config import StateDtype
from outrider.data.features.feature_store import (
    JOURNAL,
    MANIFEST,
    STORED_AS,
    Digest,
    Manifest,
    SequenceLength,
    ShardName,
    Source,
    StoredSequence,
    StoredShard,
    StoreHeader,
    encode_states,
    round_scores,
    stored_names,
)
from outrider.speculators.features import FeatureSpec, SequenceStates


@dataclass(frozen=True)
class _Pending:
    """A sequence that is not yet in a shard."""

    sequence_id: str
    completion_start: int
    tensors: dict[str, torch.Tensor]
    """By name in the shard."""

    @property
    def length(self) -> int:
        return len(self.tensors["token_ids"])


@dataclass(frozen=True)
class _Place(SequenceLength):
    """A sequence of a line of the journal, which is about one shard."""

    start: Count
    place: Count


class _JournalLine(BaseModel):
    """A line after the header: a shard and its sequences."""

    file: ShardName
    bytes: Count
    sha256: Digest
    tokens: Count
    sequences: list[_Place]


class FeatureWriter:
    """Writes a store shard by shard.

    `source` identifies the inputs of the states. A journal of the same source is continued (`done`
    contains its sequence ids, `tokens` is their total number of tokens, `restarted` is False); a
    store of any other source in the directory is removed first. If an exception ends the context,
    the finished shards are kept and no manifest is written.
    """

    def __init__(
        self,
        directory: Path,
        spec: FeatureSpec,
        source: Source,
        *,
        shard_megabytes: float = 64.0,
        score_columns: Sequence[str] = (),
        dtype: StateDtype = "bf16",
    ):
        """`spec` begins with the stream after the final norm (`FeatureSpec.stored`)."""
        self.directory = Path(directory)
        self.dtype = dtype
        self.header = StoreHeader(
            spec=spec,
            dtype=STORED_AS[dtype],
            source=source,
            score_columns=tuple(score_columns),
        )
        self.shard_bytes = int(shard_megabytes * 2**20)
        self.shards: list[StoredShard] = []
        self._sequences: list[list[StoredSequence]] = []
        """Sequences of each finished shard."""
        self.restarted = False
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._continue_or_start()
        self.done = {sequence.id for sequence in chain.from_iterable(self._sequences)}
        self.tokens = sum(shard.tokens for shard in self.shards)

    def write(self, sequence_id: str, states: SequenceStates) -> None:
        """Adds one sequence; writes the shard if it is full."""
        tokens = len(states.token_ids)
        tensors = {"token_ids": states.token_ids.to(torch.int32)}
        for stream in self.header.spec.streams:
            state_TH = states.streams[stream.name]
            if tuple(state_TH.shape) != (tokens, stream.width):
                raise ValueError(
                    f"{sequence_id}: states {tuple(state_TH.shape)} for {tokens} tokens"
                )
            encoded = encode_states(state_TH, self.dtype)
            names = stored_names(stream.name)
            tensors[names.values] = encoded.values_TH
            if encoded.scale_T is not None:
                tensors[names.scale] = encoded.scale_T
        if sequence_id in self.done:
            raise ValueError(f"{sequence_id}: written twice")
        if states.scores is not None:
            # float64: the sums of a response of 32,768 tokens keep the 1e-4 nats to which they are
            # rounded.
            tensors["scores"] = torch.tensor([round_scores(states.scores)], dtype=torch.float64)
        self.done.add(sequence_id)
        self.tokens += tokens
        self._pending.append(_Pending(sequence_id, states.completion_start, tensors))
        self._pending_bytes += sum(tensor.nbytes for tensor in tensors.values())
        if self._pending_bytes >= self.shard_bytes:
            self._write_shard()

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is not None:
            return
        if self._pending:
            self._write_shard()
        sequences = list(chain.from_iterable(self._sequences))
        Manifest(self.header, self.shards, sequences).write(self.directory)

    def _continue_or_start(self) -> None:
        for leftover in self.directory.glob(".*.tmp"):  # of a killed capture
            leftover.unlink()
        journal = self.directory / JOURNAL
        content = journal.read_text(encoding="utf-8") if journal.exists() else ""
        # The last element is empty, or a line that was being written when the capture was killed.
        lines = content.split("\n")[:-1]
        fix = f"delete {self.directory} and capture again"
        header = parse_form(dict[str, Any], lines[0], journal, fix) if lines else None
        if header == self.header.as_json():
            self._continue(lines[1:])
        else:
            self._start()
        # A manifest would mark the store as complete while it is written to.
        (self.directory / MANIFEST).unlink(missing_ok=True)
        self.directory.chmod(0o700)
        shards = [self._journal_line(number) for number in range(len(self.shards))]
        text = "".join(f"{line}\n" for line in [json.dumps(self.header.as_json()), *shards])
        self._write_private(journal, text.encode())

    def _continue(self, lines: Sequence[str]) -> None:
        """Takes over the journal's shards, up to the first one that is damaged."""
        journal = self.directory / JOURNAL
        fix = "delete this line and all after it, and rerun the command"
        for number, line in enumerate(lines):
            row = parse_form(_JournalLine, line, f"{journal}: line {number + 2}", fix)
            sequences = [StoredSequence(**asdict(place), shard=number) for place in row.sequences]
            shard = StoredShard(row.file, row.bytes, row.sha256, row.tokens)
            path = self.directory / shard.file
            # A shard is journaled after it is written, so only a disk that lost data leaves a
            # damaged one.
            if not path.exists() or file_digest(path) != shard.sha256:
                break
            self.shards.append(shard)
            self._sequences.append(sequences)

    def _start(self) -> None:
        """Creates the directory, or removes the store of another source."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        earlier = [*self.directory.glob("shard-*.safetensors"), *self.directory.glob(MANIFEST)]
        self.restarted = bool(earlier)
        for path in earlier:
            path.unlink()

    def _journal_line(self, number: int) -> str:
        """A shard and its sequences, without their shard's number, as JSON."""
        rows = [asdict(sequence) for sequence in self._sequences[number]]
        for row in rows:
            del row["shard"]
        return json.dumps(asdict(self.shards[number]) | {"sequences": rows})

    def _write_shard(self) -> None:
        """Writes the pending sequences as a shard."""
        pending = self._pending
        self._pending = []
        self._pending_bytes = 0
        number = len(self.shards)
        sequences = []
        start = 0
        for index_in_shard, sequence in enumerate(pending):
            sequences.append(
                StoredSequence(
                    id=sequence.sequence_id,
                    length=sequence.length,
                    completion_start=sequence.completion_start,
                    shard=number,
                    start=start,
                    place=index_in_shard,
                )
            )
            start += sequence.length
        names = pending[0].tensors
        tensors = {
            name: torch.cat([sequence.tensors[name] for sequence in pending]) for name in names
        }
        path = self.directory / f"shard-{number:05d}.safetensors"
        # Private, since a target's head turns states back into the text.
        self._write_private(path, save(tensors))
        self.shards.append(
            StoredShard(
                file=path.name,
                bytes=path.stat().st_size,
                sha256=file_digest(path),
                tokens=start,
            )
        )
        self._sequences.append(sequences)
        with (self.directory / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(f"{self._journal_line(number)}\n")
            # The line must be on the disk before the next shard begins; a lost line is a shard that
            # is captured again.
            journal.flush()
            os.fsync(journal.fileno())

    @staticmethod
    def _write_private(path: Path, content: bytes) -> None:
        with publish(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(content)
