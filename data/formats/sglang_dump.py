"""SGLang's request and crash dumps: pickles, read without running them.

Flags: `dump_requests_folder`, `--crash-dump-folder`.

    {"server_args": ServerArgs(...),
     "requests": [(GenerateReqInput(...), {"text": ..., "output_ids": ...}, created, finished)]}

unpickle.py builds only containers and inert records; a pickle that names anything else is one
reject.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats.fields import take_number, take_text
from outrider.data.formats.rows import kind_of
from outrider.data.formats.sample import Sample
from outrider.data.formats.sglang import exchange
from outrider.data.formats.unpickle import LARGEST, PlainRecord, is_pickle, unpickle
from outrider.data.ingest.sources import LogFile

NAME = "sglang_dump"

ASKED = (
    *(
        "rid",
        "text",
        "input_ids",
        "sampling_params",
        "custom_labels",
        "session_params",
        "lora_path",
    ),
    *("image_data", "video_data", "audio_data", "input_embeds"),
)
ANSWERED = ("text", "output_ids", "prompt_token_ids", "meta_info", "embedding")
ABOUT = ("completion_tokens", "finish_reason", "e2e_latency")
"""Fields that are read. A dump has many more, such as log-probabilities and hidden states."""

LONG_AGO = 1e9
"""Unix seconds. Smaller values are a clock that counts from the machine's start."""


def recognizes(sample: Sample) -> bool:
    return is_pickle(sample.head)


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    for file in files:
        try:
            with file.open() as stream:
                data = stream.read(LARGEST + 1)
            model, requests = _requests(unpickle(data))
        except Reject as reject:
            file.meter.rows += 1
            reject.place = Place(file.name, 1)
            yield reject
            continue
        # A pickle can refer to one list of ids a million times; what it stores is at most its
        # bytes.
        left = 4 * len(data)
        for number, entry in enumerate(requests, start=1):
            file.meter.rows += 1
            place = Place(file.name, number)
            try:
                payload, size = _entry(entry, left)
            except Reject as reject:
                reject.place = place
                yield reject
            else:
                left -= size
                yield Record(place, {**payload, "model": model})


def parse(record: Record) -> list[Exchange | Reject]:
    row = record.payload
    finished = take_number(row, "finished", "row")
    created = take_number(row, "created", "row")
    # An unfinished request of a crash dump has no output yet.
    if not row["answered"]:
        raise Reject("not_finished", "the request was still running when it was dumped")
    made = exchange(
        row["asked"],
        row["answered"],
        record.place,
        finished=None,
        model=take_text(row, "model", "server_args"),
    )
    times = [time for time in (created, finished) if time is not None and time > LONG_AGO]
    return [dataclasses.replace(made, time=times[0]) if times else made]


def _requests(value: Any) -> tuple[str | None, list[Any]]:
    """The model's name and the requests; the oldest dumps are the list alone."""
    arguments = value.get("server_args") if isinstance(value, dict) else None
    requests = value.get("requests") if isinstance(value, dict) else value
    if not isinstance(requests, list) or not requests:
        raise Reject("not_a_dump", "no list of requests in the pickle")
    said = _fields(arguments)
    names = [said.get(key) for key in ("served_model_name", "model_path")]
    return next((name for name in names if isinstance(name, str)), None), requests


def _entry(entry: Any, left: int) -> tuple[dict[str, Any], int]:
    """The fields of one request that are read, as plain JSON types, and their size."""
    if not isinstance(entry, tuple | list) or len(entry) < 2:
        raise Reject(
            "wrong_type",
            f"a request of the dump is {kind_of(entry)}, not a tuple of request and response",
        )
    asked, answered = _fields(entry[0]), _fields(entry[1])
    if isinstance(entry[0], PlainRecord) and entry[0].name[1] == "EmbeddingReqInput":
        raise Reject("not_a_generation", "an embedding")
    copy = _Copy(left)
    answer = {key: answered[key] for key in ANSWERED if key in answered}
    if isinstance(answer.get("meta_info"), dict):
        answer["meta_info"] = {
            key: answer["meta_info"][key] for key in ABOUT if key in answer["meta_info"]
        }
    payload = {
        "asked": copy.plain({key: asked[key] for key in ASKED if key in asked}),
        "answered": copy.plain(answer),
        "created": copy.plain(entry[2]) if len(entry) > 2 else None,
        "finished": copy.plain(entry[3]) if len(entry) > 3 else None,
    }
    return payload, copy.size


def _fields(value: Any) -> dict[Any, Any]:
    return (
        value.fields if isinstance(value, PlainRecord) else value if isinstance(value, dict) else {}
    )


class _Copy:
    """Copies the fields of a request; values of a pickle may be cyclic."""

    DEEPEST = 6

    def __init__(self, left: int):
        self.left = left
        self.size = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        self.size += len(value) if isinstance(value, str | list | tuple | dict) else 1
        if self.size > self.left:
            raise Reject(
                "pickle_too_large", "its requests share values and are larger than the pickle"
            )
        if value is None or type(value) in (bool, int, float, str):
            return value
        if depth == self.DEEPEST:
            raise Reject("nested_too_deeply")
        if isinstance(value, list | tuple):
            numbers = all(type(item) is int for item in value)
            return list(value) if numbers else [self.plain(item, depth + 1) for item in value]
        if isinstance(value, dict | PlainRecord):
            return {str(key): self.plain(held, depth + 1) for key, held in _fields(value).items()}
        return f"<{type(value).__name__}>"
