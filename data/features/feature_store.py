"""Feature store: token ids and hidden states in checksummed safetensors shards.

A store is a directory of `shard-00000.safetensors`, ... and `manifest.json`. A shard has
`token_ids` [tokens] int32 and the states [tokens, width] of each stream, sequence after sequence,
in bfloat16 or in FP8 with scales [tokens] (`encode_states`). The stream after the final norm is
stored as `hidden` and `scale`, any other stream NAME as `NAME` and `NAME.scale`. The manifest lists
the streams (`speculators.features.FeatureSpec`) and the location of each sequence.
feature_writer.py writes stores.

A sequence may also have scores: sums of the target's scores of its completion
(serving/logged_text.py), stored in the shard as `scores` [sequences, parts, columns]. Scores
contain no text, but text can be recovered from hidden states, so only the owner of these files can
read them.

    store = FeatureStore.open(Path("runs/resume_screening/features"))
    store.read(store.sequence_ids[0]).hidden                        # [tokens, width]
    store.sequences["0-17"].length                                  # without reading the states
"""

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from pydantic import BaseModel, Field
from safetensors import safe_open

from outrider.common.errors import OutriderError
from outrider.common.files import link_or_copy, publish, write_json
from outrider.common.fingerprint import file_digest
from outrider.common.json_forms import Count, read_form
from outrider.data.config import StateDtype
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates

VERSION = 4
"""Version of the format."""
JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"

VERIFY_THREADS = 16
"""Most threads that compute SHA-256 at once: 1.3 to 1.4 GB/s of CPU time each (measured on an AMD
EPYC with SHA instructions; copying the same states out of the mapped shard: 5 GB/s)."""

STORED_AS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
"""torch's names for the storage types."""

Source = dict[str, object]
"""JSON that identifies the inputs of the states."""


@dataclass(frozen=True)
class SequenceLength:
    """One sequence's number of tokens and where its completion starts."""

    id: str
    length: Count
    completion_start: Count
    """Index of the first token that the target generated."""


@dataclass(frozen=True)
class StoredSequence(SequenceLength):
    """The place of one sequence in a feature store."""

    shard: Count
    start: Count
    """Index of its first token in the shard."""
    place: Count
    """Index among the shard's sequences, and thus in `scores`."""


ShardName = Annotated[str, Field(pattern=r"^shard-[0-9]{5,9}\.safetensors$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class StoredShard:
    """A finished file of a feature store."""

    file: ShardName
    bytes: Count
    sha256: Digest
    tokens: Count


@dataclass(frozen=True)
class StoreHeader:
    """What all sequences of a feature store have in common."""

    spec: FeatureSpec
    """The stored streams, the final norm's first."""
    dtype: str
    """A value of `STORED_AS`."""
    source: Source
    score_columns: tuple[str, ...] = ()
    """Empty if the sequences have no scores."""

    def as_json(self) -> dict[str, object]:
        """The header as stored in the manifest and the journal."""
        header = {
            "version": VERSION,
            "hidden_size": self.spec.streams[0].width,
            "features": self.spec.as_list(),
            "dtype": self.dtype,
            "source": self.source,
        }
        if self.score_columns:
            header["score_columns"] = list(self.score_columns)
        return header


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json."""

    header: StoreHeader
    shards: Sequence[StoredShard]
    sequences: Sequence[StoredSequence]

    def write(self, directory: Path) -> None:
        """Publishes the manifest, which completes a store."""
        rows = {
            "shards": [asdict(shard) for shard in self.shards],
            "sequences": [asdict(sequence) for sequence in self.sequences],
        }
        write_json(directory / MANIFEST, self.header.as_json() | rows, private=True)

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """The inverse of `write`; raises an `OutriderError` for another version."""
        path = directory / MANIFEST
        fix = f"delete {directory} and capture again"
        version = read_form(_Version, path, fix).version
        if version != VERSION:
            raise OutriderError(
                f"{path}: version {version}, but this program reads {VERSION}; capture again"
            )
        content = read_form(_ManifestFile, path, fix)
        beyond = [row.id for row in content.sequences if row.shard >= len(content.shards)]
        if beyond:
            raise OutriderError(f"{path}: sequence {beyond[0]!r:.40} is in no shard; {fix}")
        header = StoreHeader(
            spec=FeatureSpec(tuple(content.features)),
            dtype=content.dtype,
            source=content.source,
            score_columns=tuple(content.score_columns),
        )
        return cls(header, content.shards, content.sequences)


class _Version(BaseModel):
    version: int


class _ManifestFile(BaseModel):
    """The file as it is read; `Manifest.write` writes it."""

    features: Annotated[list[FeatureStream], Field(min_length=1)]
    dtype: Literal["bfloat16", "float8_e4m3fn"]
    source: Source
    score_columns: list[str] = []
    shards: list[StoredShard]
    sequences: list[StoredSequence]


class _TensorSlice(Protocol):
    def __getitem__(self, span: "slice[int, int, None]") -> torch.Tensor: ...


class _OpenShard(Protocol):
    """The part of `safe_open`, which has no types, that reads a shard."""

    def get_slice(self, name: str) -> _TensorSlice: ...


class FeatureStore:
    """Reads a finished store, memory-mapped."""

    def __init__(self, directory: Path, manifest: Manifest):
        self.directory = directory
        self.manifest = manifest
        self.sequences = {sequence.id: sequence for sequence in manifest.sequences}
        """All sequences by id, in the order they were written."""
        self._open: dict[int, _OpenShard] = {}
        self._verified = set[int]()
        """Shards that `verify` has read."""

    def __reduce__(self) -> "tuple[type[FeatureStore], tuple[Path, Manifest]]":
        """Pickles without the memory mapping; another process opens its own."""
        return type(self), (self.directory, self.manifest)

    @classmethod
    def open(cls, directory: Path) -> "FeatureStore":
        """Opens the store at `directory`; checks its version and shard sizes."""
        directory = Path(directory)
        if not (directory / MANIFEST).exists():
            raise OutriderError(
                f"{directory}: no feature store, or an unfinished one (there is no {MANIFEST});"
                " run the capture stage, which resumes"
            )
        manifest = Manifest.read(directory)
        for shard in manifest.shards:
            path = directory / shard.file
            size = path.stat().st_size if path.exists() else "no"
            # Sizes only: `verify` reads the files, once for each training and evaluation. R1's
            # states (14 kB per token) take minutes of CPU time.
            if size != shard.bytes:
                raise OutriderError(
                    f"{path}: {size} bytes, but the manifest lists {shard.bytes}; delete the"
                    " folder and capture again"
                )
        return cls(directory, manifest)

    def verify(self, sequence_ids: Iterable[str]) -> None:
        """Compares the shards of these sequences with the manifest's SHA-256, each one once.

        For R1, 5,000 responses of 4k tokens are 286 GB: 200 s of CPU time, 26 s on 8 threads, 2 %
        of the 20 minutes that a training of them takes at least (docs/how-to/cost.md). Sequences
        that are not in the store are left out. Raises an `OutriderError` for a changed shard.
        """
        sequences = (self.sequences.get(name) for name in sequence_ids)
        numbers = {sequence.shard for sequence in sequences if sequence is not None}
        shards = [self.manifest.shards[number] for number in sorted(numbers - self._verified)]
        paths = [self.directory / shard.file for shard in shards]
        threads = min(len(os.sched_getaffinity(0)), VERIFY_THREADS)
        with ThreadPoolExecutor(threads) as pool:
            for path, shard, digest in zip(
                paths, shards, pool.map(file_digest, paths), strict=True
            ):
                if digest != shard.sha256:
                    raise OutriderError(
                        f"{path}: its SHA-256 is {digest}, but capture wrote {shard.sha256} into"
                        f" {MANIFEST}; delete {self.directory} and rerun the command to repeat"
                        " capture"
                    )
        self._verified |= numbers

    @property
    def sequence_ids(self) -> list[str]:
        """Ids of all sequences, in the order they were written."""
        return list(self.sequences)

    @property
    def spec(self) -> FeatureSpec:
        """Streams in the store."""
        return self.manifest.header.spec

    @property
    def digest(self) -> str:
        """Digest of the manifest, which has the digest of every shard."""
        return file_digest(self.directory / MANIFEST)

    @property
    def score_columns(self) -> list[str]:
        """Names of the scores' columns; empty for a capture without scores."""
        return list(self.manifest.header.score_columns)

    def scores(self, sequence_id: str) -> list[list[float]]:
        """Returns column sums over the first `logged_text.HEAD` completion tokens and the rest."""
        sequence = self.sequences[sequence_id]
        row = slice(sequence.place, sequence.place + 1)
        scores: list[list[float]] = self._slice(sequence, "scores")[row][0].tolist()
        return scores

    def length(self, sequence_id: str) -> int:
        """Returns a sequence's number of tokens, without reading it."""
        return self.sequences[sequence_id].length

    def completion_start(self, sequence_id: str) -> int:
        """Returns `SequenceStates.completion_start` without reading the sequence."""
        return self.sequences[sequence_id].completion_start

    def read(self, sequence_id: str) -> SequenceStates:
        """Reads only the bytes of one sequence; its scores are read by `scores`."""
        return SequenceStates(
            token_ids=self.tokens(sequence_id),
            completion_start=self.sequences[sequence_id].completion_start,
            streams={name: self._stream(sequence_id, name) for name in self.spec.names},
        )

    def tokens(self, sequence_id: str) -> torch.Tensor:
        """[T]: the token ids of one sequence, without its states."""
        return self._span(sequence_id, "token_ids")

    def _stream(self, sequence_id: str, name: str) -> torch.Tensor:
        names = stored_names(name)
        values_TH = self._span(sequence_id, names.values)
        if self.manifest.header.dtype != STORED_AS["fp8"]:
            return decode_states(Encoded(values_TH))
        return decode_states(Encoded(values_TH, self._span(sequence_id, names.scale)))

    def _span(self, sequence_id: str, name: str) -> torch.Tensor:
        """Reads a sequence's rows of one tensor of its shard."""
        sequence = self.sequences[sequence_id]
        span = slice(sequence.start, sequence.start + sequence.length)
        return self._slice(sequence, name)[span]

    def _slice(self, sequence: StoredSequence, name: str) -> _TensorSlice:
        if sequence.shard not in self._open:
            path = self.directory / self.manifest.shards[sequence.shard].file
            # Kept open: each shard is mapped once per process.
            self._open[sequence.shard] = safe_open(path, framework="pt")
        return self._open[sequence.shard].get_slice(name)


def round_scores(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rounds a sequence's scores to 1e-4 nats."""
    return [[round(value, 4) for value in part] for part in scores]


class Encoded(NamedTuple):
    """States of one stream as a shard stores them."""

    values_TH: torch.Tensor
    scale_T: torch.Tensor | None = None
    """None for bfloat16."""


def encode_states(hidden_TH: torch.Tensor, dtype: StateDtype) -> Encoded:
    """Encodes states for a shard; non-finite states stay non-finite through their scale.

    A state after the final norm has entries of similar size, except for a few outliers. FP8 (e4m3)
    has one float32 scale for each token, which maps the largest entry to e4m3's largest number;
    entries down to 1 / 28,672 of the largest keep a relative step of 1/8.
    """
    if dtype == "bf16":
        return Encoded(hidden_TH.to(torch.bfloat16))
    wide_TH = hidden_TH.float()
    scale_T = wide_TH.abs().amax(-1) / torch.finfo(torch.float8_e4m3fn).max
    # Any scale works for a state of zeros.
    divisor_T = torch.where(scale_T == 0, 1.0, scale_T)
    # One scale per token, since single tokens, such as the first, have states that are far larger
    # than all others (arXiv:2402.17762).
    return Encoded((wide_TH / divisor_T[:, None]).to(torch.float8_e4m3fn), divisor_T)


def decode_states(encoded: Encoded) -> torch.Tensor:
    """Decodes states to bfloat16 [T, H]; the inverse of `encode_states`."""
    if encoded.scale_T is None:
        return encoded.values_TH
    return (encoded.values_TH.float() * encoded.scale_T[:, None]).to(torch.bfloat16)


class StoredNames(NamedTuple):
    """Names of a stream's tensors in a shard."""

    values: str
    scale: str


STORED_NAMES = {FINAL_NORM: StoredNames(values="hidden", scale="scale")}
"""Streams that a shard stores under other names."""


def stored_names(stream: str) -> StoredNames:
    """Returns the names of a stream's tensors in a shard."""
    return STORED_NAMES.get(stream, StoredNames(values=stream, scale=f"{stream}.scale"))


SAME = ("hidden_size", "features", "dtype", "score_columns")
"""Header keys whose values must be equal in stores that are joined."""


def join_stores(directories: Sequence[Path], sequence_ids: Collection[str], out_dir: Path) -> None:
    """Publishes a store of these sequences, with hard links if possible.

    Raises:
        OutriderError: If stores differ in a key of `SAME`, or a sequence is in no store.
    """
    stores = [FeatureStore.open(directory) for directory in directories]
    header = _common_header(stores)
    missing = set(sequence_ids)
    shards: list[StoredShard] = []
    sequences: list[StoredSequence] = []
    with publish(out_dir) as folder:
        folder.mkdir(mode=0o700)
        for store in stores:
            chosen = [row for row in store.manifest.sequences if row.id in missing]
            missing -= {row.id for row in chosen}
            new_number: dict[int, int] = {}
            for number in sorted({row.shard for row in chosen}):
                new_number[number] = len(shards)
                shard = store.manifest.shards[number]
                name = f"shard-{len(shards):05d}.safetensors"
                # Shards are never written to again, so a link is as good as a copy.
                link_or_copy(store.directory / shard.file, folder / name)
                shards.append(replace(shard, file=name))
            sequences += [replace(row, shard=new_number[row.shard]) for row in chosen]
        if missing:
            raise OutriderError(
                f"{directories[0]} and {len(directories) - 1} more: no states of"
                f" {len(missing)} sequences (first {min(missing)}); capture them first"
            )
        Manifest(header, shards, sequences).write(folder)


def _common_header(stores: Sequence[FeatureStore]) -> StoreHeader:
    """Returns the header of the joined store; raises if the stores do not match."""
    first = stores[0].manifest.header
    expected = first.as_json()
    for store in stores[1:]:
        header = store.manifest.header.as_json()
        for key in SAME:
            if header.get(key) != expected.get(key):
                raise OutriderError(
                    f"{store.directory / MANIFEST}: {key} differs from that of"
                    f" {stores[0].directory}; capture both with the same recipe"
                )
    return replace(first, source={"joined": [store.manifest.header.source for store in stores]})
