"""SGLang's request and crash dumps: pickles, read without executing them.

Written with `dump_requests_folder` or `--crash-dump-folder`.

    {"server_args": ServerArgs(...),
     "requests": [(GenerateReqInput(...), {"text": ..., "output_ids": ...}, created, finished)]}

unpickle.py reads them in a process limited to 4 GB of memory and 120 s of CPU time. It builds only
containers and inert records; a pickle that references anything else becomes one reject.

To get request dumps, set `dump_requests_folder` through `/configure_logging`. If files are rejected
as `pickle_too_large`, lower the number of requests per file.
"""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import unpickle
from outrider.data.formats.fields import take, take_number, take_text
from outrider.data.formats.rows import Sample, parse_row
from outrider.data.formats.sglang import exchange
from outrider.data.formats.sources import LogFile

FIRST_UNIX_TIME = 1e9
"""Smaller times come from a clock that counts from the machine's start, not from 1970."""


def recognizes(sample: Sample) -> bool:
    head = sample.head  # a pickle's protocol, then the opcode of a frame, mark or container
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2:3] in b"\x95(})]"


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    for file in files:
        for number, line in enumerate(_lines(file), start=1):
            file.rows += 1
            place = Place(file.name, number)
            if line.startswith(b'{"reject": '):
                reason, detail = json.loads(line)["reject"]
                yield Reject(reason, detail, place)
            else:
                yield Record(place, line)


def _lines(file: LogFile) -> Iterator[bytes]:
    """Yields unpickle.py's output; adds a reject if the program exceeds its limits."""
    # -I: imports nothing from the user's environment or the working directory.
    command = [sys.executable, "-I", unpickle.__file__]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as reader,
        file.open() as content,
    ):
        assert reader.stdin is not None and reader.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), reader.stdin:
                shutil.copyfileobj(content, reader.stdin)
            yield from reader.stdout
            reader.wait()
        finally:
            reader.kill()
    if reader.returncode:
        limits = f"{unpickle.MEMORY >> 30} GB or {unpickle.SECONDS} s"
        detail = f"reading it takes more than {limits}"
        yield json.dumps({"reject": ["pickle_too_large", detail]}).encode()


def parse(record: Record) -> list[Exchange | Reject]:
    row = parse_row(record.payload)
    asked, answered = take(row, "asked", dict, "row"), take(row, "answered", dict, "row")
    # In a crash dump, an unfinished request has no output yet.
    if not answered:
        raise Reject("not_finished", "the request was still running when it was dumped")
    model = take_text(row, "model", "server_args")
    made = exchange(asked, answered, record.place, finished=None, model=model)
    times = [take_number(row, key, "row") for key in ("created", "finished")]
    known = [time for time in times if time is not None and time > FIRST_UNIX_TIME]
    return [dataclasses.replace(made, time=known[0]) if known else made]
