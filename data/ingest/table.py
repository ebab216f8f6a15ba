"""The table of sequences: assembled from the parts, and read, in batches.

Files are read rather than mapped where all rows are needed: the pages of a mapped file count as
memory of the process until the mapping ends, and a table has as many bytes as the log.

    publish_table(tables, aside, run / "traffic/sequences")
    for batch in record_batches(run / "traffic/sequences"): batch["token_ids"]
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, disable_progress_bars
from numpy.typing import NDArray

from outrider.common.files import publish
from outrider.common.fingerprint import file_digest, value_digest
from outrider.data.exchange import CONVERSATION, FIRST_QUESTION, USER
from outrider.data.ingest.arrow_files import columns_of
from outrider.data.ingest.chunks import SCHEMA
from outrider.data.ingest.copies import SetAside


def publish_table(parts: Sequence[Path], aside: SetAside, sequences_dir: Path) -> None:
    """Publishes the table of all parts without those set aside, rows in log order.

    `datasets.load_from_disk` reads it. The fingerprint depends only on the content, so that a
    repeated ingest gives the same bytes and later stages are not rerun.
    """
    sessions = _shared_traces(parts, aside)
    everybody = _user_of_everybody(parts, aside)
    digest = value_digest([file_digest(part) for part in parts])[:16]
    disable_progress_bars()  # the ingest shows its own
    with publish(sequences_dir) as folder:
        folder.mkdir(mode=0o700)
        # `save_to_disk` of all rows would map all parts at once, so it only writes the files
        # that describe a table of these columns.
        empty = Dataset(SCHEMA.empty_table(), fingerprint=digest)
        empty.save_to_disk(str(folder), num_shards=1)
        with pa.ipc.new_stream(str(_file_of(folder)), SCHEMA) as writer:
            for part in parts:
                writer.write_table(_kept_rows(part, aside, sessions, everybody))
        # `save_to_disk` creates files that everybody may read.
        for path in folder.iterdir():
            path.chmod(0o600)


def record_batches(sequences_dir: Path) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a table in batches, one in memory at a time."""
    with pa.OSFile(str(_file_of(sequences_dir))) as file:
        yield from pa.ipc.open_stream(file)


def _file_of(sequences_dir: Path) -> Path:
    [path] = sequences_dir.glob("*.arrow")
    return path


def _kept_rows(part: Path, aside: SetAside, sessions: pa.Array, everybody: str) -> pa.Table:
    """Returns a part's rows without those set aside.

    A row of the user `everybody` belongs to the session of its first question, and one whose trace
    is among `sessions` to that conversation.
    """
    stored = pa.ipc.open_stream(pa.memory_map(str(part))).read_all()
    table = stored.select(SCHEMA.names).replace_schema_metadata(SCHEMA.metadata)
    is_everybody = pc.and_(
        pc.equal(stored["session_kind"], USER), pc.equal(stored["session"], everybody)
    )
    is_session = pc.is_in(stored["trace"], value_set=sessions)
    for condition, column_of_session, kind in (
        (is_everybody, "first_question", FIRST_QUESTION),
        (is_session, "trace", CONVERSATION),
    ):
        for name, value in (("session", stored[column_of_session]), ("session_kind", kind)):
            column = pc.if_else(condition, value, table[name])
            table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), column)
    return table.filter(_is_kept(len(table), aside.get(part, {})))


def _user_of_everybody(parts: Sequence[Path], aside: SetAside) -> str:
    """Returns the user whom most rows name; empty without one.

    It is the account of a service whose users are not logged. Its requests are no session: they
    hardly pause, so that the whole log would be one, which cannot be split.
    """
    rows = 0
    counts: Counter[str] = Counter()
    for part in parts:
        columns = _kept_columns(part, aside, ["session", "session_kind"])
        rows += len(columns)
        users = columns["session"].filter(pc.equal(columns["session_kind"], USER))
        for pair in users.value_counts().to_pylist():
            counts[pair["values"]] += pair["counts"]
    name, most = counts.most_common(1)[0] if counts else ("", 0)
    return name if 2 * most > rows else ""


def _kept_columns(part: Path, aside: SetAside, names: Sequence[str]) -> pa.Table:
    columns = columns_of(part, names)
    return columns.filter(_is_kept(len(columns), aside.get(part, {})))


def _is_kept(rows: int, aside: Iterable[int]) -> NDArray[np.bool_]:
    is_kept = np.ones(rows, bool)
    is_kept[list(aside)] = False
    return is_kept


def _shared_traces(parts: Sequence[Path], aside: SetAside) -> pa.Array:
    """Returns the traces that several kept rows have: they are conversations."""
    columns = []
    for part in parts:
        columns += _kept_columns(part, aside, ["trace"])["trace"].chunks
    counts = pc.value_counts(pa.chunked_array(columns, pa.string()))
    shared = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    return shared.filter(pc.not_equal(shared, ""))
