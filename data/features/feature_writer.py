"""Writes a feature store; an interrupted capture can resume.

    with FeatureWriter(directory, hidden_size=7168, source={"target": ...}) as writer:
        writer.write(sequence_id, token_ids, hidden, completion_start)

`journal.jsonl` has a header and one line for each finished shard; an interrupted capture resumes
after the last one. The manifest (feature_store.py) is written at the end. Only the index and one
shard are in memory, so memory use does not grow with the states.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from outrider.common.files import publish, write_json
from outrider.common.fingerprint import file_digest
from outrider.data.config import StateDtype
from outrider.data.features.feature_store import (
    JOURNAL,
    MANIFEST,
    STORED_AS,
    VERSION,
    encode,
    rounded,
    stored_names,
)
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream


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
        hidden_size: int,
        source: dict[str, Any],
        shard_megabytes: float = 64.0,
        score_columns: Sequence[str] = (),
        dtype: StateDtype = "bf16",
        auxiliary: Sequence[FeatureStream] = (),
    ):
        self.directory = Path(directory)
        self.dtype = dtype
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
        """Tensors of sequences that are not yet written, and their index rows."""
        self._pending_bytes = 0
        self._continue_or_start()
        self.done = {sequence["id"] for shard in self.shards for sequence in shard["sequences"]}
        self.tokens = sum(shard["tokens"] for shard in self.shards)

    def write(
        self,
        sequence_id: str,
        token_ids: torch.Tensor | Sequence[int],
        hidden: torch.Tensor,
        completion_start: int,
        scores: Sequence[Sequence[float]] | None = None,
        auxiliary: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Adds one sequence; writes the shard if it is full."""
        token_ids = torch.as_tensor(token_ids, dtype=torch.int32)
        states = {FINAL_NORM: hidden, **(auxiliary or {})}
        stored = {"token_ids": token_ids}
        for stream in self.spec.streams:
            shape = tuple(states[stream.name].shape)
            if shape != (len(token_ids), stream.width):
                raise ValueError(f"{sequence_id}: states {shape} for {len(token_ids)} tokens")
            encoded = encode(states[stream.name], self.dtype)
            names = stored_names(stream.name)
            stored |= {names[part]: tensor for part, tensor in encoded.items()}
        if sequence_id in self.done:
            raise ValueError(f"{sequence_id}: written twice")
        if scores is not None:
            stored["scores"] = torch.tensor([rounded(scores)], dtype=torch.float64)
        self.done.add(sequence_id)
        self.tokens += len(token_ids)
        self._pending.append((stored, {"id": sequence_id, "completion_start": completion_start}))
        self._pending_bytes += sum(tensor.nbytes for tensor in stored.values())
        if self._pending_bytes >= self.shard_bytes:
            self._write_shard()

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is not None:
            return
        if self._pending:
            self._write_shard()
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

    def _continue_or_start(self) -> None:
        for left in self.directory.glob(".*.tmp"):  # left by a killed capture
            left.unlink()
        journal = self.directory / JOURNAL
        # Ignores an incomplete last line.
        content = journal.read_text(encoding="utf-8") if journal.exists() else ""
        lines = content.split("\n")[:-1]
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
        (self.directory / MANIFEST).unlink(missing_ok=True)
        self.directory.chmod(0o700)
        kept = "".join(json.dumps(line) + "\n" for line in [self.header, *self.shards])
        self._write_private(journal, kept.encode())

    def _write_shard(self) -> None:
        """Writes the pending sequences as a shard."""
        pending = self._pending
        self._pending = []
        self._pending_bytes = 0
        names = pending[0][0]
        tensors = {name: torch.cat([tensors[name] for tensors, _ in pending]) for name in names}
        sequences = []
        start = 0
        for place, (tensors_of_one, row) in enumerate(pending):
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

    @staticmethod
    def _write_private(path: Path, content: bytes) -> None:
        with publish(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(content)
