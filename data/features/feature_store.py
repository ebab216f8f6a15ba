"""The feature store: token ids and the target's hidden states, in checksummed safetensors shards.

A directory of `shard-00000.safetensors` and `manifest.json`. A shard has `token_ids` [tokens] int32
and the states [tokens, width] of each stream, sequence after sequence, in bfloat16 or in FP8 with
scales [tokens] (state_dtype.py). The stream after the final norm is stored as `hidden` and `scale`,
any other stream NAME as `NAME` and `NAME.scale`. The manifest lists the streams
(`speculators.features.FeatureSpec`) and the place of each sequence. During capture
`journal.jsonl` takes the manifest's place, one line for each finished shard, so that an
interrupted capture resumes after the last of them.

A sequence may have scores: sums of the target's probabilities of its completion
(serving/logged_text.py), numbers without text, `scores` [sequences, parts, columns] of a shard. Hidden states can be inverted to the text they came
from: only their owner can read these files.

    python -m outrider.data.features.feature_store runs/resume_screening/features    # checksums
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, write_json
from outrider.common.fingerprint import file_digest
from outrider.data.config import StateDtype
from outrider.data.features.state_dtype import STORED_AS, decode, encode
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream

VERSION = 4
"""Version of the format. 4 has the scores in its shards, earlier ones in the manifest; 3 lists its
streams; 1 (bfloat16) and 2 (FP8) hold `final_norm` alone."""
READABLE = (1, 2, 3, 4)
JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"
SCORE_DIGITS = 4
"""Decimals of the scores: 1e-4 nats, summed over a whole completion."""


@dataclass(frozen=True)
class Features:
    """One sequence: the tokens of the engine, and the target's states at each position."""

    token_ids: torch.Tensor
    """[T] int32"""
    hidden: torch.Tensor
    """[T, H] after the final norm, bfloat16 in any storage dtype"""
    completion_start: int
    """Index of the first token that the target produced."""
    auxiliary: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """[T, H] of each other stream, by name"""


class FeatureWriter:
    """Writes a store from one thread, behind a bounded queue: the engine never waits for the disk.

        with FeatureWriter(directory, hidden_size=7168, source={"target": ...}) as writer:
            for row in rows_not_in(writer.done):
                writer.write(row.sequence_id, row.token_ids, hidden, row.completion_start, scores)

    `source` identifies what the states were made from. A journal of the same source is continued
    (`done` holds its sequences, `tokens` counts theirs, `restarted` is False); a store of any other
    source in the directory is removed first. At most `queue_bytes` of states wait for the disk,
    besides the shard that is being written. Leaving the block by an exception keeps the finished
    shards and writes no manifest.
    """

    def __init__(
        self,
        directory: Path,
        hidden_size: int,
        source: dict[str, Any],
        shard_megabytes: float = 64.0,
        score_columns: Sequence[str] = (),
        dtype: StateDtype = "bf16",
        auxiliary: Sequence[FeatureStream] = (),
        queue_bytes: int = 2**25,
    ):
        self.directory, self.dtype = Path(directory), dtype
        self.spec = FeatureSpec((FeatureStream(FINAL_NORM, hidden_size), *auxiliary))
        self.header: dict[str, Any] = {
            "version": VERSION,
            "hidden_size": hidden_size,
            "features": self.spec.as_list(),
            "dtype": STORED_AS[dtype],
            "source": source,
        }
        if score_columns:
            self.header["score_columns"] = list(score_columns)
        self.shard_bytes = int(shard_megabytes * 2**20)
        self.shards: list[dict[str, Any]] = []
        self.restarted = False
        self._pending: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = []
        self._pending_bytes = 0
        self._error: BaseException | None = None
        self._abandoned = threading.Event()
        self._queue: queue.Queue[Any] = queue.Queue()
        self._queued_bytes, self._queue_bytes = 0, queue_bytes
        self._room = threading.Condition()
        self._continue_or_start()
        self.done = {sequence["id"] for shard in self.shards for sequence in shard["sequences"]}
        self.tokens = sum(shard["tokens"] for shard in self.shards)
        self._thread = threading.Thread(target=self._run, name="feature-writer", daemon=True)
        self._thread.start()

    def write(
        self,
        sequence_id: str,
        token_ids: torch.Tensor | Sequence[int],
        hidden: torch.Tensor,
        completion_start: int,
        scores: Sequence[Sequence[float]] | None = None,
        auxiliary: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Hands one sequence to the writer thread, whose errors are raised here.

        Blocks while the disk is `queue_bytes` behind.
        """
        token_ids = torch.as_tensor(token_ids, dtype=torch.int32)
        states = {FINAL_NORM: hidden, **(auxiliary or {})}
        stored: dict[str, torch.Tensor] = {}
        for stream in self.spec.streams:
            shape = tuple(states[stream.name].shape)
            if shape != (len(token_ids), stream.width):
                raise ValueError(f"{sequence_id}: states {shape} for {len(token_ids)} tokens")
            encoded = encode(states[stream.name], self.dtype)
            names = _stored_names(stream.name)
            stored |= {names[part]: tensor for part, tensor in encoded.items()}
        if sequence_id in self.done:
            raise ValueError(f"{sequence_id}: written twice")
        if (scores is None) != ("score_columns" not in self.header):
            raise ValueError(f"{sequence_id}: all sequences have scores, or none")
        if scores is not None:
            rounded = [[round(value, SCORE_DIGITS) for value in part] for part in scores]
            stored["scores"] = torch.tensor([rounded], dtype=torch.float64)
        self.done.add(sequence_id)
        self.tokens += len(token_ids)
        row: dict[str, Any] = {"id": sequence_id, "completion_start": completion_start}
        self._put(({"token_ids": token_ids, **stored}, row))

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is not None:
            self._abandoned.set()
            self._thread.join()
            return
        self._put(None)
        self._thread.join()
        self._raise()
        sequences = []
        for index, shard in enumerate(self.shards):
            sequences += [{**sequence, "shard": index} for sequence in shard["sequences"]]
        shards = [
            {key: shard[key] for key in ("file", "bytes", "sha256", "tokens")}
            for shard in self.shards
        ]
        write_json(
            self.directory / MANIFEST,
            {**self.header, "shards": shards, "sequences": sequences},
            private=True,
        )
        (self.directory / JOURNAL).unlink(missing_ok=True)

    def _continue_or_start(self) -> None:
        for left in self.directory.glob(".*.tmp"):  # a killed capture was writing it
            left.unlink()
        journal = self.directory / JOURNAL
        if journal.exists():
            # A torn last line does not count.
            lines = journal.read_text(encoding="utf-8").split("\n")[:-1]
        else:
            lines = self._finished_lines()
        if lines and json.loads(lines[0]) == self.header:
            for line in lines[1:]:
                shard = json.loads(line)
                path = self.directory / shard["file"]
                if not path.exists() or file_digest(path) != shard["sha256"]:
                    break
                self.shards.append(shard)
        else:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            earlier = [*self.directory.glob("shard-*.safetensors"), *self.directory.glob(MANIFEST)]
            self.restarted = bool(earlier)
            for path in earlier:
                path.unlink()
        self.directory.chmod(0o700)
        self._write_private(
            journal,
            "".join(json.dumps(line) + "\n" for line in [self.header, *self.shards]).encode(),
        )

    def _finished_lines(self) -> list[str]:
        """A finished store as journal lines.

        A capture may be killed after its manifest and before its summary.
        """
        if not (self.directory / MANIFEST).exists():
            return []
        manifest = read_json(self.directory / MANIFEST)
        shards = [{**shard, "sequences": []} for shard in manifest.pop("shards")]
        for sequence in manifest.pop("sequences"):
            shards[sequence.pop("shard")]["sequences"].append(sequence)
        return [json.dumps(line) for line in (manifest, *shards)]

    def _put(self, item: Any) -> None:
        size = _bytes_of(item)
        with self._room:
            # A sequence larger than the queue goes in alone.
            while self._queued_bytes and self._queued_bytes + size > self._queue_bytes:
                self._raise()
                self._room.wait(0.2)
            self._raise()
            self._queued_bytes += size
        self._queue.put(item)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    item = self._queue.get(timeout=0.2)
                except queue.Empty:
                    continue
                if item is None:
                    return self._finish_shard()
                with self._room:
                    self._queued_bytes -= _bytes_of(item)
                    self._room.notify()
                self._pending.append(item)
                self._pending_bytes += _bytes_of(item)
                if self._pending_bytes >= self.shard_bytes:
                    self._finish_shard()
        except BaseException as error:  # handed to the caller's thread, which raises it
            self._error = error

    def _finish_shard(self) -> None:
        if not self._pending:
            return
        names = self._pending[0][0]
        tensors = {
            name: torch.cat([tensors[name] for tensors, _ in self._pending]) for name in names
        }
        sequences, start = [], 0
        for place, (tensors_of_one, row) in enumerate(self._pending):
            length = len(tensors_of_one["token_ids"])
            sequences.append({**row, "place": place, "start": start, "length": length})
            start += length
        path = self.directory / f"shard-{len(self.shards):05d}.safetensors"
        self._write_private(path, save(tensors))
        shard = {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": file_digest(path),
            "tokens": start,
            "sequences": sequences,
        }
        with (self.directory / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(shard) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self.shards.append(shard)
        self._pending, self._pending_bytes = [], 0

    @staticmethod
    def _write_private(path: Path, content: bytes) -> None:
        with publish(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(content)


def _bytes_of(item: tuple[dict[str, torch.Tensor], Any] | None) -> int:
    return sum(tensor.nbytes for tensor in item[0].values()) if item else 0


class FeatureStore:
    """Reads a finished store, memory-mapped; each process opens its own mapping."""

    def __init__(self, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.manifest = manifest
        self._table = {sequence["id"]: sequence for sequence in manifest["sequences"]}
        self._open: dict[tuple[int, int], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which opens its own mapping."""
        return type(self), (self.directory, self.manifest)

    @classmethod
    def open(cls, directory: Path) -> "FeatureStore":
        """Opens the store at `directory`; checks its version and that every shard is whole."""
        directory = Path(directory)
        if not (directory / MANIFEST).exists():
            unfinished = (directory / JOURNAL).exists()
            what = (
                "an unfinished capture; run the capture stage again, it goes on"
                if unfinished
                else "no feature store"
            )
            raise OutriderError(f"{directory}: {what} (there is no {MANIFEST})")
        manifest = read_json(directory / MANIFEST)
        if manifest.get("version") not in READABLE:
            readable = ", ".join(map(str, READABLE))
            raise OutriderError(
                f"{directory / MANIFEST}: version {manifest.get('version')!r}, this program reads"
                f" {readable}; capture again"
            )
        for shard in manifest["shards"]:
            path = directory / shard["file"]
            size = path.stat().st_size if path.exists() else None
            if size != shard["bytes"]:
                found = "missing" if size is None else f"{size} bytes"
                raise OutriderError(
                    f"{path}: {found}, the manifest says {shard['bytes']} bytes; delete the folder"
                    " and capture again"
                )
        return cls(directory, manifest)

    @property
    def sequence_ids(self) -> list[str]:
        """Every sequence in the order in which it was written."""
        return list(self._table)

    @property
    def hidden_size(self) -> int:
        """H of the target."""
        return int(self.manifest["hidden_size"])

    @property
    def spec(self) -> FeatureSpec:
        """The streams that the store holds."""
        if "features" in self.manifest:
            return FeatureSpec.from_list(self.manifest["features"])
        return FeatureSpec((FeatureStream(FINAL_NORM, self.hidden_size),))

    @property
    def score_columns(self) -> list[str]:
        """Names of the scores' columns; empty for a capture without scores."""
        return list(self.manifest.get("score_columns", []))

    def scores(self, sequence_id: str) -> list[list[float]]:
        """Sums over the head of the completion and over its rest, by `score_columns`."""
        row = self._table[sequence_id]
        if "scores" in row:
            return row["scores"]
        place = row["place"]
        return self._shard(row["shard"]).get_slice("scores")[place : place + 1][0].tolist()

    def length(self, sequence_id: str) -> int:
        """Tokens of a sequence, without reading it."""
        return self._table[sequence_id]["length"]

    def completion_start(self, sequence_id: str) -> int:
        """Index of the first token that the target produced, without reading the sequence."""
        return int(self._table[sequence_id]["completion_start"])

    def read(self, sequence_id: str) -> Features:
        """One sequence; only its own bytes are read."""
        row = self._table[sequence_id]
        shard, stop = self._shard(row["shard"]), row["start"] + row["length"]
        span = slice(row["start"], stop)
        states = {}
        for name in self.spec.names:
            stored = {
                part: shard.get_slice(stored_as)[span]
                for part, stored_as in _stored_names(name).items()
                if part == "hidden" or self.manifest["dtype"] == STORED_AS["fp8"]
            }
            states[name] = decode(stored)
        return Features(
            token_ids=shard.get_slice("token_ids")[span],
            hidden=states.pop(FINAL_NORM),
            completion_start=row["completion_start"],
            auxiliary=states,
        )

    def tokens(self, sequence_id: str) -> torch.Tensor:
        """[T]: the token ids of one sequence, without its states."""
        row = self._table[sequence_id]
        span = slice(row["start"], row["start"] + row["length"])
        return self._shard(row["shard"]).get_slice("token_ids")[span]

    def verify(self) -> None:
        """Compares all bytes with the checksums; the error names the first damaged shard."""
        for shard in self.manifest["shards"]:
            if file_digest(self.directory / shard["file"]) != shard["sha256"]:
                raise OutriderError(
                    f"{self.directory / shard['file']}: its bytes changed since capture; delete the"
                    " folder and capture again"
                )

    def _shard(self, index: int) -> Any:
        key = (os.getpid(), index)  # a child of a fork opens its own mapping
        if key not in self._open:
            path = self.directory / self.manifest["shards"][index]["file"]
            self._open[key] = safe_open(path, framework="pt")
        return self._open[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def _stored_names(stream: str) -> dict[str, str]:
    """Names in a shard of a stream's values and scales (`state_dtype.encode`)."""
    if stream == FINAL_NORM:
        return {"hidden": "hidden", "scale": "scale"}
    return {"hidden": stream, "scale": f"{stream}.scale"}


if __name__ == "__main__":
    store = FeatureStore.open(Path(sys.argv[1]))
    store.verify()
    tokens = sum(shard["tokens"] for shard in store.manifest["shards"])
    print(
        f"{len(store.sequence_ids)} sequences, {tokens} tokens, hidden size {store.hidden_size}:"
        " every checksum holds"
    )
