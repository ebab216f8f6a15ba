"""Feature store: token ids and hidden states in checksummed safetensors shards.

A store is a directory of `shard-00000.safetensors`, ... and `manifest.json`. A shard has
`token_ids` [tokens] int32 and the states [tokens, width] of each stream, sequence after sequence,
in bfloat16 or in FP8 with scales [tokens] (`encode`). The stream after the final norm is stored as
`hidden` and `scale`, any other stream NAME as `NAME` and `NAME.scale`. The manifest lists the
streams (`speculators.features.FeatureSpec`) and the location of each sequence. feature_writer.py
writes stores.

A sequence may also have scores: sums of the target's scores of its completion
(serving/logged_text.py), stored in the shard as `scores` [sequences, parts, columns]. Scores
contain no text, but text can be recovered from hidden states, so only the owner of these files can
read them.

    store = FeatureStore.open(Path("runs/resume_screening/features"))
    store.read(store.sequence_ids[0]).hidden                        # [tokens, width]
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from outrider.common.errors import OutriderError
from outrider.common.files import link_or_copy, publish, read_json, write_json
from outrider.data.config import StateDtype
from outrider.speculators.features import FINAL_NORM, FeatureSpec

VERSION = 4
"""Version of the format."""
JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"

STORED_AS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
"""torch's names for the storage types."""

SAME = ("version", "hidden_size", "features", "dtype", "score_columns")
"""Manifest keys whose values must be equal in stores that are joined."""


@dataclass(frozen=True)
class Features:
    """One sequence: its token ids, and the target's states at each position."""

    token_ids: torch.Tensor
    """[T] int32"""
    hidden: torch.Tensor
    """[T, H] after the final norm; always bfloat16, whatever the storage dtype"""
    completion_start: int
    """Index of the first token that the target produced."""
    auxiliary: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """[T, H] of each other stream, by name"""


class FeatureStore:
    """Reads a finished store, memory-mapped."""

    def __init__(self, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.manifest = manifest
        self._table = {sequence["id"]: sequence for sequence in manifest["sequences"]}
        self._open: dict[int, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
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
        manifest = read_json(directory / MANIFEST)
        if manifest.get("version") != VERSION:
            raise OutriderError(
                f"{directory / MANIFEST}: version {manifest.get('version')!r}, but this program"
                f" reads {VERSION}; capture again"
            )
        for shard in manifest["shards"]:
            path = directory / shard["file"]
            size = path.stat().st_size if path.exists() else "no"
            if size != shard["bytes"]:
                raise OutriderError(
                    f"{path}: {size} bytes, but the manifest lists {shard['bytes']}; delete the"
                    " folder and capture again"
                )
        return cls(directory, manifest)

    @property
    def sequence_ids(self) -> list[str]:
        """Ids of all sequences, in the order they were written."""
        return list(self._table)

    @property
    def spec(self) -> FeatureSpec:
        """Streams in the store."""
        return FeatureSpec.from_list(self.manifest["features"])

    @property
    def score_columns(self) -> list[str]:
        """Names of the scores' columns; empty for a capture without scores."""
        return list(self.manifest.get("score_columns", []))

    def scores(self, sequence_id: str) -> list[list[float]]:
        """Returns column sums over the first `logged_text.HEAD` completion tokens and the rest."""
        row = self._table[sequence_id]
        place = row["place"]
        return self._shard(row["shard"]).get_slice("scores")[place : place + 1][0].tolist()

    def length(self, sequence_id: str) -> int:
        """Returns a sequence's number of tokens, without reading it."""
        return self._table[sequence_id]["length"]

    def completion_start(self, sequence_id: str) -> int:
        """Returns `Features.completion_start` without reading the sequence."""
        return int(self._table[sequence_id]["completion_start"])

    def read(self, sequence_id: str) -> Features:
        """Reads only the bytes of one sequence."""
        row = self._table[sequence_id]
        shard = self._shard(row["shard"])
        stop = row["start"] + row["length"]
        span = slice(row["start"], stop)
        states = {}
        for name in self.spec.names:
            stored = {
                part: shard.get_slice(stored_as)[span]
                for part, stored_as in stored_names(name).items()
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

    def _shard(self, index: int) -> Any:
        if index not in self._open:
            path = self.directory / self.manifest["shards"][index]["file"]
            self._open[index] = safe_open(path, framework="pt")
        return self._open[index]


def rounded(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rounds a sequence's scores to 1e-4 nats."""
    return [[round(value, 4) for value in part] for part in scores]


def encode(hidden_TH: torch.Tensor, dtype: StateDtype) -> dict[str, torch.Tensor]:
    """Encodes states for a shard; non-finite states stay non-finite through their scale.

    A state after the final norm has entries of similar size, except for a few outliers. FP8 (e4m3)
    has one float32 scale for each token, which maps the largest entry to e4m3's largest number;
    entries down to 1 / 28,672 of the largest keep a relative step of 1/8.
    """
    if dtype == "bf16":
        return {"hidden": hidden_TH.to(torch.bfloat16)}
    wide_TH = hidden_TH.float()
    scale_T = wide_TH.abs().amax(-1) / torch.finfo(torch.float8_e4m3fn).max
    # Any scale works for a state of zeros.
    divisor_T = torch.where(scale_T == 0, 1.0, scale_T)
    return {"hidden": (wide_TH / divisor_T[:, None]).to(torch.float8_e4m3fn), "scale": divisor_T}


def decode(stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Decodes states to bfloat16 [T, H]; the inverse of `encode`."""
    if "scale" not in stored:
        return stored["hidden"]
    return (stored["hidden"].float() * stored["scale"][:, None]).to(torch.bfloat16)


def stored_names(stream: str) -> dict[str, str]:
    """Returns the names of a stream's values and scales in a shard."""
    if stream == FINAL_NORM:
        return {"hidden": "hidden", "scale": "scale"}
    return {"hidden": stream, "scale": f"{stream}.scale"}


def join_stores(directories: Sequence[Path], wanted: Collection[str], out_dir: Path) -> None:
    """Publishes a store of the `wanted` sequences, with hard links if possible.

    Raises:
        OutriderError: If stores differ in a key of `SAME`, or a `wanted` sequence is in no store.
    """
    stores = [FeatureStore.open(directory) for directory in directories]
    first = stores[0].manifest
    for store in stores[1:]:
        for key in SAME:
            if store.manifest.get(key) != first.get(key):
                raise OutriderError(
                    f"{store.directory / MANIFEST}: {key} differs from that of"
                    f" {stores[0].directory}; capture both with the same recipe"
                )
    missing = set(wanted)
    shards: list[dict[str, Any]] = []
    sequences: list[dict[str, Any]] = []
    with publish(out_dir) as folder:
        folder.mkdir(mode=0o700)
        for store in stores:
            rows = [row for row in store.manifest["sequences"] if row["id"] in missing]
            missing -= {row["id"] for row in rows}
            place: dict[int, int] = {}
            for number in sorted({row["shard"] for row in rows}):
                place[number] = len(shards)
                shard = store.manifest["shards"][number]
                name = f"shard-{len(shards):05d}.safetensors"
                link_or_copy(store.directory / shard["file"], folder / name)
                shards.append({**shard, "file": name})
            sequences += [{**row, "shard": place[row["shard"]]} for row in rows]
        if missing:
            raise OutriderError(
                f"{directories[0]} and {len(directories) - 1} more: no states of"
                f" {len(missing)} sequences (first {min(missing)}); capture them first"
            )
        source = {"joined": [store.manifest["source"] for store in stores]}
        header = {key: first[key] for key in SAME if key in first}
        manifest = {**header, "source": source, "shards": shards, "sequences": sequences}
        write_json(folder / MANIFEST, manifest, private=True)
