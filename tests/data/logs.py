"""Log rows as vLLM and a gateway write them, files of them, and what a reader makes of these."""

import gzip
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import LogFile
from outrider.data.formats import files_by_format, parse_record, read_records
from tools.nano_r1 import resumes

WORDS = (
    "zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich, 1.234,50 € — naïve façade?"
    '\n\t {"key": [1, 2]}'
)


def screenings(count):
    """Invented résumé screenings: (messages, reasoning, answer)."""
    for one in itertools.islice(
        resumes.conversations(Path(), seed=7, count=count, part="train"), count
    ):
        yield one.messages, one.reasoning, one.answer


def pair(messages, reasoning, content, **changes):
    """One logged line as vLLM and a gateway write it.

    `changes` replace or add top-level keys of row, request or response.
    """
    row = {
        "request": {
            "model": "nano-r1",
            "messages": messages,
            "temperature": 0.7,
            "metadata": {"session_id": "s-1", "tenant": "acme"},
        },
        "response": {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "nano-r1",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "reasoning": reasoning, "content": content},
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        holder = row
        for parent in parents:
            holder = (
                holder[int(parent)] if isinstance(holder, list) else holder.setdefault(parent, {})
            )
        holder[last] = value
    return row


def write_log(path: Path, rows) -> Path:
    """Writes JSON lines; rows of bytes are written unchanged."""
    content = b"".join(
        row + b"\n" if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read_exchanges(files: Sequence[LogFile], name: str = "auto") -> Iterator[Exchange | Reject]:
    """Every outcome of a few files."""
    with tempfile.TemporaryDirectory() as scratch:
        for format_name, its_files in files_by_format(files, name).items():
            for item in read_records(format_name, its_files, Path(scratch)):
                yield from [item] if isinstance(item, Reject) else parse_record(format_name, item)
