"""What the trainer's ranks open instead of a feature store: states as they are captured.

    source = StreamedFeatures.open(run / "training/stream")
    number = source.begin(plan.places(0, ()))
    with contextlib.closing(source.reading(number, mine)) as reading:
        reading.read(sequence_id)

It implements `training.feature_source.FeatureSource`. The training part comes from the desk, whose
address stream.py wrote into the directory. The validation part is in the feature store that the
capture stage wrote. Token ids are in the table of sequences.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.config import StateDtype
from outrider.data.features.feature_store import Features, FeatureStore
from outrider.data.features.state_dtype import decode, encode
from outrider.data.sequences import load_sequences
from outrider.data.streaming.desk import Place, StreamMarks, Taken
from outrider.data.streaming.remote_desk import CapturedStates, Fetch, Lost, connect
from outrider.speculators.features import FINAL_NORM, FeatureSpec

STREAM = "stream.json"
"""Where the desk is, and where the sequences are."""
MANIFEST = "manifest.json"
"""What will be streamed: as a feature store's, without shards."""


class RanksDesk(Protocol):
    """The methods of the desk that ranks call, here or in another process."""

    def begin(self, places: Sequence[Place]) -> int: ...

    def take(self, number: int, position: int) -> Taken: ...

    def done(self, number: int, position: int) -> None: ...

    def lost(self, number: int, position: int, payload: Any) -> None: ...

    def off_policy(self, number: int, positions: Sequence[int]) -> Taken: ...

    def marks(self) -> StreamMarks: ...


class StreamedFeatures:
    """The states of the training part in the order of the plan, of the others from a store."""

    def __init__(
        self,
        desk: RanksDesk,
        fetch: Fetch,
        table: Dataset,
        manifest: dict[str, Any],
        store: FeatureStore,
    ):
        self.desk, self.fetch, self.table = desk, fetch, table
        self.manifest, self.store = manifest, store
        self.rows = {row["id"]: row for row in manifest["sequences"]}
        ids = table["sequence_id"][:]
        self._place = {sequence_id: number for number, sequence_id in enumerate(ids)}

    @classmethod
    def open(cls, directory: Path) -> "StreamedFeatures":
        """Connects to the desk that the directory names."""
        directory = Path(directory)
        if not (directory / STREAM).exists():
            raise OutriderError(f"{directory}: no stream (there is no {STREAM}); rerun the command")
        found = read_json(directory / STREAM)
        desk, fetch = connect(found)
        tables = [Path(path) for path in found["tables"]]
        return cls(
            desk,
            fetch,
            load_sequences(tables).select_columns(["sequence_id", "token_ids"]),
            read_json(directory / MANIFEST),
            FeatureStore.open(Path(found["store"])),
        )

    @property
    def spec(self) -> FeatureSpec:
        """The streams that are captured."""
        return FeatureSpec.from_list(self.manifest["features"])

    @property
    def dtype(self) -> StateDtype:
        """`capture.dtype`: states are rounded to it, as a store would."""
        return "fp8" if self.manifest["dtype"].startswith("float8") else "bf16"

    def read(self, sequence_id: str) -> Features:
        """One sequence of the validation part."""
        return self.store.read(sequence_id)

    def tokens(self, sequence_id: str) -> torch.Tensor:
        """[T] the token ids of any sequence, as captured."""
        token_ids = self.table[self._place[sequence_id]]["token_ids"]
        return torch.tensor(token_ids[: self.rows[sequence_id]["length"]], dtype=torch.int32)

    def begin(self, places: Sequence[Place]) -> int:
        """Announces what will be read, in order."""
        return self.desk.begin(places)

    def reading(self, number: int, mine: Sequence[Place]) -> "StreamReading":
        """Reads one process's places of an announcement."""
        return StreamReading(self, number, mine)


class StreamReading:
    """One process's states of the training part, each read once, in the order of its places."""

    def __init__(self, source: StreamedFeatures, number: int, mine: Sequence[Place]):
        self._source, self._number = source, number
        self._mine = iter(mine)
        self._closed = False

    def read(self, sequence_id: str) -> Features:
        """The states at the next place; waits for capture."""
        place = next(self._mine)
        if place.sequence_id != sequence_id:
            raise RuntimeError(f"the plan has {place.sequence_id} here, not {sequence_id}")
        desk, source = self._source.desk, self._source
        while True:
            payload = self._ask(lambda: desk.take(self._number, place.position))
            try:
                states = _copied(source.fetch(payload), sequence_id, source.dtype)
            except Lost:
                desk.lost(self._number, place.position, payload)
                continue
            desk.done(self._number, place.position)
            hidden_TH = states.pop(FINAL_NORM)
            row = source.rows[sequence_id]
            return Features(source.tokens(sequence_id), hidden_TH, row["completion_start"], states)

    def off_policy(self, places: Sequence[Place]) -> list[bool]:
        """Whether the sequence at each place is off-policy; waits for capture."""
        positions = [place.position for place in places]
        desk = self._source.desk
        return self._ask(lambda: desk.off_policy(self._number, positions))

    def marks(self) -> dict[str, float]:
        """Bytes held and kept, and seconds that capture has waited for training."""
        marks = self._source.desk.marks()
        return {
            "stream_held_bytes": marks.held_bytes,
            "stream_most_held_bytes": marks.most_held_bytes,
            "stream_kept_bytes": marks.kept_bytes,
            "stream_pieces": marks.pieces_captured,
            "stream_capture_waited_s": marks.capture_waited_s,
        }

    def close(self) -> None:
        """Ends a `read` that waits in another thread."""
        self._closed = True

    def _ask(self, question: Callable[[], Taken]) -> Any:
        while not self._closed:
            taken = question()
            if taken.failed is not None:
                raise OutriderError(taken.failed)
            if taken.void:
                raise OutriderError("the stream of states has ended; rerun the command to resume")
            if not taken.waits:
                return taken.answer
        raise OutriderError("training has stopped reading the stream; rerun the command to resume")


def _copied(
    captured: Sequence[CapturedStates], sequence_id: str, dtype: StateDtype
) -> dict[str, torch.Tensor]:
    """A sequence's states [T, H] by stream, out of shared memory, as a store would return them."""
    row = next(row for row in captured if row.row_id == sequence_id)
    copies = {}
    for name, bits in row.states.items():
        state_TH = torch.from_numpy(bits.copy()).view(torch.bfloat16)
        copies[name] = state_TH if dtype == "bf16" else decode(encode(state_TH, dtype))
    return copies
