"""vLLM's server log, joined by request id. Best effort.

Flags: `--enable-log-requests --enable-log-outputs`; VLLM_LOGGING_LEVEL=DEBUG adds token ids.

    DEBUG 07-01 12:00:00 [...] Request chatcmpl-17 details: prompt: '<｜User｜>...',
      prompt_token_ids: [0, ...], prompt_embeds shape: None.
    INFO 07-01 12:00:00 [...] Received request chatcmpl-17: params: SamplingParams(n=1, ...),
      lora_request: None.
    DEBUG 07-01 12:00:09 [...] Generated response chatcmpl-17 details: output_token_ids: [301, ...]
    INFO 07-01 12:00:09 [...] Generated response chatcmpl-17: output: 'Paris.', finish_reason: stop

Older releases write prompt and ids into the line `Received request`, and `output_token_ids` into
`Generated response`. vllm_events.py recognizes the lines and reads their values.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats.fields import first, take, take_text, take_time
from outrider.data.formats.openai import finish_reason
from outrider.data.formats.rows import parse_row
from outrider.data.formats.sample import Sample
from outrider.data.formats.text_log import Aside
from outrider.data.formats.vllm_events import (
    Event,
    completion_of,
    events,
    finish_of,
    ids_of,
    is_request_log,
    longest,
    prompt_of,
    sampling_of,
)
from outrider.data.ingest.sources import LogFile

NAME = "vllm_log"

WAITING = 256 * 2**20
"""Characters of requests that wait for their responses. Above it the oldest is given up; clients
that disconnected log no response."""

OPENINGS = ("<｜Assistant｜>", "<think>")
"""End of a prompt that R1's template rendered completely."""

DESCRIPTIONS = ("[tool_calls: ", "[reasoning: ")
"""What vLLM writes in place of a text that it parsed out."""


def recognizes(sample: Sample) -> bool:
    return is_request_log(sample.head)


@dataclass
class _Waiting:
    """The lines of one request so far."""

    place: Place
    rows: int = 0
    size: int = 0
    said: dict[str, str] = field(default_factory=dict)
    """Values by kind of line: `received`, `details`, `body`."""
    outputs: list[dict[str, str]] = field(default_factory=list)
    """One per choice: `text` and `ids` as logged."""
    last_finish: str | None = None
    """Finish reason of the last piece of a stream; the line for the whole has none."""
    time: str | None = None
    deltas: int = 0
    """Number of lines with pieces of a stream."""

    wanted: int = 1
    """Number of requested outputs."""

    def is_whole(self) -> bool:
        """Whether all outputs were logged."""
        return len(self.outputs) >= self.wanted and "text" in self.outputs[-1]


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    for file in files:
        limit = longest(LogFile(file.name, file.filesystem, file.path))
        yield from _Join(file, limit).records()


class _Join:
    """Joins lines of a file to records by request id, in order of the responses' ends."""

    def __init__(self, file: LogFile, limit: tuple[int, int]):
        self.file = file
        self.limit = limit
        self.waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.size = 0

    def records(self) -> Iterator[Record | Reject]:
        aside = Aside(self.file.name)
        for event in events(self.file):
            if isinstance(event, int):
                aside.add(event)
                continue
            yield from aside.end()
            if isinstance(event, Reject):
                yield event
                continue
            yield from self.take(event)
            while self.size > WAITING:
                yield self.give(next(iter(self.waiting)))
        yield from aside.end()
        for key in list(self.waiting):
            yield self.give(key)

    def take(self, event: Event) -> Iterator[Record | Reject]:
        """Stores an event; yields the records that it completes."""
        request = self.waiting.get(event.key)
        of_request = event.kind in ("body", "details", "received")
        if request is not None and of_request and (request.outputs or event.kind in request.said):
            yield self.give(event.key)  # an id that a client sent twice
            request = None
        if request is None:
            request = self.waiting[event.key] = _Waiting(
                Place(self.file.name, event.line), time=event.time
            )
        request.rows += event.rows
        if event.stream == "streaming delta":  # the line for the whole stream has the text
            request.deltas += 1
            if event.kind == "output":
                request.last_finish = finish_of(event.rest)
            return
        request.size += len(event.rest)
        self.size += len(event.rest)
        if of_request:
            request.said[event.kind] = event.rest
            if event.kind == "received":
                request.wanted = _wanted(event.rest)
            return
        field_name = "ids" if event.kind == "output_ids" else "text"
        if field_name == "text" and request.outputs and "text" not in request.outputs[-1]:
            request.outputs[-1]["text"] = event.rest
        else:
            request.outputs.append({field_name: event.rest})
        if request.is_whole():
            yield self.give(event.key)

    def give(self, key: str) -> Record | Reject:
        """Removes a request and returns its record or reject."""
        request = self.waiting.pop(key)
        self.size -= request.size
        if not request.outputs:
            if request.deltas:
                return Reject(
                    "stream_cut", "a stream without its end", request.place, rows=request.rows
                )
            detail = (
                "no response in the log: still running, given up, or --enable-log-outputs was off"
            )
            return Reject("unmatched_request", detail, request.place, rows=request.rows)
        if not request.said.keys() & {"received", "details"}:
            return Reject(
                "unmatched_response", "no request with its id", request.place, rows=request.rows
            )
        payload = {
            **request.said,
            "outputs": request.outputs,
            "last_finish": request.last_finish,
            "limit": self.limit,
            "time": request.time,
        }
        return Record(request.place, payload, rows=request.rows)


def _wanted(rest: str) -> int:
    try:
        return int(sampling_of(rest).get("n", 1))
    except Reject:
        return 1  # `parse` rejects it, with its place


def parse(record: Record) -> list[Exchange | Reject]:
    said = record.payload
    received = said.get("received", "")
    prompt_text, prompt_ids = prompt_of(said.get("details") or received)
    if prompt_text is None and prompt_ids is None:
        raise Reject("prompt_not_logged", "set VLLM_LOGGING_LEVEL=DEBUG")
    _check_prompt(prompt_text, prompt_ids)
    sampling = sampling_of(received)
    body = _body(said.get("body"))
    metadata = take(body, "metadata", dict, "request") or {}
    shared: dict[str, Any] = {
        "place": record.place,
        "prompt_token_ids": prompt_ids,
        "prompt_text": prompt_text if prompt_ids is None else None,
        "model": take_text(body, "model", "request"),
        "session": take_text(metadata, "session_id", "metadata"),
        "user": take_text(body, "user", "request"),
        "tenant": take_text(metadata, "tenant", "metadata"),
        "route": take_text(metadata, "route", "metadata"),
        "time": take_time(said, "time", "line"),
        "temperature": sampling.get("temperature"),
        "top_p": sampling.get("top_p"),
    }
    outcomes: list[Exchange | Reject] = []
    for number, output in enumerate(said["outputs"]):
        try:
            outcomes.append(Exchange(choice=number, **shared, **_of_output(output, said, sampling)))
        except Reject as reject:
            outcomes.append(reject)
    return outcomes


def _check_prompt(text: str | None, ids: list[int] | None) -> None:
    """Rejects a prompt that `--max-log-len` cut.

    It does not end like R1's template, or it has as many ids as characters.
    """
    whole = text is None or text.rstrip().endswith(OPENINGS)
    if not whole and (ids is None or len(ids) == len(text or "")):
        raise Reject(
            "truncated_log",
            "the prompt does not end where an answer begins; start vLLM without --max-log-len",
        )


def _of_output(
    output: dict[str, str], said: dict[str, Any], sampling: dict[str, Any]
) -> dict[str, Any]:
    text, ids, finish = completion_of(output.get("text", ""))
    ids = first(ids, ids_of(output.get("ids", "")))
    length, count = said["limit"]
    # A list of ids as long as the longest text was cut with it; a single longest text need not be.
    if len(ids if ids is not None else text or "") == length and (ids is not None or count > 1):
        raise Reject(
            "truncated_log",
            "the response is as long as the longest text of the log; start vLLM without "
            "--max-log-len",
        )
    if finish == "streaming_complete":
        finish = said["last_finish"] or ""
        if not finish:
            raise Reject("end_not_logged", "a stream's lines do not say how it ended")
    made_up = text is not None and text.startswith(DESCRIPTIONS)
    if made_up and ids is None:
        raise Reject("tool_calls_without_ids", "the log describes the calls")
    if not text and ids is None:
        raise Reject("empty_response")
    ended = finish_reason(finish)
    stop = sampling.get("stop", [])
    if stop is None and ids is None:
        raise Reject("incomplete_line", "stop strings that cannot be read")
    strings = tuple(string for string in stop or () if isinstance(string, str) and string)
    return {
        "completion_token_ids": ids,
        "content": None if made_up else text,
        "finish_reason": ended,
        "stop_strings": strings if ended == "stop" else (),
    }


def _body(line: str | None) -> dict[str, Any]:
    """The request as the client sent it.

    It only adds the sender, so one that was cut is ignored.
    """
    try:
        return parse_row(line.encode()) if line else {}
    except Reject:
        return {}
