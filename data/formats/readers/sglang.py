"""SGLang's request log as JSON lines.

Flags: `--log-requests --log-requests-level 3 --log-requests-format json`.

    {"timestamp": "...", "event": "request.received", "rid": "17",
     "obj": {"input_ids": [...], "sampling_params": {...}, ...}}
    {"timestamp": "...", "event": "request.finished", "rid": "17", "obj": {...},
     "out": {"text": "...", "output_ids": [...],
             "meta_info": {"finish_reason": {"type": "stop", "matched": 1}, ...}}}

Only `request.finished` is read, since it repeats the request. Level 2 cuts the middle out of long
texts and lists; levels 0 and 1 omit them.

The model name and messages are lost, and often tenant and session. Rejects: `truncated_log` for
texts cut at level 2, `text_not_logged` for lower levels, `text_log` for the text format. Times are
read as UTC. The lines may be inside collectors' records, as in `vllm_log`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.packing import CUT_MARK
from outrider.data.files.rows import FileSample, parse_row, with_other_lines
from outrider.data.files.sources import LogFile, read_ahead
from outrider.data.formats.calls.finish_reasons import finish_reason
from outrider.data.formats.calls.openai import stop_strings
from outrider.data.formats.calls.sampling import sampling_of
from outrider.data.formats.fields import (
    first_value,
    take,
    take_ids,
    take_number,
    take_text,
    take_time,
)
from outrider.data.formats.rows.engine_lines import LEFT_OUT, LINES_LEFT_OUT, engine_lines

FINISHED = "request.finished"

_EVENT = re.compile(rb'"event":\s*"(request\.[a-z_.]+)"')
_TEXT_EVENT = re.compile(rb"(?:Receive|Finish): obj=\w+\(")

KEPT, DOTS = 1024, "..."
"""Length that level 2 keeps at each end of a long text or list, and the ellipsis in between."""

LEVEL_3 = "start SGLang with --log-requests-level 3"


def recognizes(sample: FileSample) -> bool:
    return bool(_EVENT.search(sample.head) or _TEXT_EVENT.search(sample.head))


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    for file in read_ahead(files):
        yield from with_other_lines(
            _item(Place(file.name, number), line)
            for number, line in file.count_rows_read(engine_lines(file))
        )


def _item(place: Place, line: bytes | None) -> Record | Reject | Place:
    """Returns the record or reject of a line, or the place of an unrelated line."""
    if line == LEFT_OUT:
        return Reject("truncated", LINES_LEFT_OUT, place)
    if line is None or line.endswith(CUT_MARK):
        return Record(place, line)
    event = _EVENT.search(line, 0, 1000)
    begin = line.find(b"{", 0, 200)
    if event is None and _TEXT_EVENT.search(line, 0, 1000):
        detail = "a line of --log-requests-format text; only json can be read"
        return Reject("text_log", detail, place)
    is_row = event[1].decode() == FINISHED if event else begin == 0
    return Record(place, line[max(begin, 0) :]) if is_row else place


def parse(record: Record) -> list[Exchange | Reject]:
    row = parse_row(record.payload)
    if row.get("event") != FINISHED:
        raise Reject("not_a_generation", f"not a {FINISHED} row")
    asked = take(row, "obj", dict, "row")
    answered = take(row, "out", dict, "row")
    if asked is None or answered is None:
        raise Reject("incomplete_pair", f"no {'obj' if asked is None else 'out'}")
    headers = take(row, "headers", dict, "row") or {}
    finished = take_time(row, "timestamp")
    # SGLang's router groups the requests of a conversation by this key.
    session = take_text(headers, "x-smg-routing-key", "headers")
    return [_exchange(asked, answered, record.place, finished=finished, session=session)]


def _exchange(
    asked: dict[str, Any],
    answered: dict[str, Any],
    place: Place,
    finished: float | None,
    session: str | None = None,
) -> Exchange:
    """Builds an exchange from a `GenerateReqInput` and its output, both as dicts."""
    # `/health_generate` sends a prompt of one token under the id `HEALTH_CHECK_{time}`.
    if (take_text(asked, "rid", "obj") or "").startswith("HEALTH_CHECK") or "embedding" in answered:
        raise Reject("not_a_generation", "a health check or an embedding")
    asked = _without_cut_text(asked, "input_ids")
    answered = _without_cut_text(answered, "output_ids")
    _check_whole(asked, "obj", ("text", "input_ids"))
    _check_whole(answered, "out", ("text", "output_ids"))
    if any(asked.get(key) for key in ("image_data", "video_data", "audio_data", "input_embeds")):
        raise Reject("not_text", "the request has inputs other than text")
    prompt_ids = first_value(
        take_ids(asked, "input_ids", "obj"), take_ids(answered, "prompt_token_ids", "out")
    )
    prompt_text = take(asked, "text", str, "obj")
    if prompt_ids is None and prompt_text is None:
        raise Reject("no_messages", "neither input_ids nor text")
    about = take(answered, "meta_info", dict, "out") or {}
    counted = take(about, "completion_tokens", int, "meta_info")
    completion_ids = take_ids(answered, "output_ids", "out")
    if completion_ids is not None and counted is not None and len(completion_ids) != counted:
        raise Reject(
            "partial_response",
            "not as many output_ids as completion_tokens: only the last piece of a stream",
        )
    content = take(answered, "text", str, "out")
    if not content and completion_ids is None:
        raise Reject("empty_response")
    ended, stop_reason = _end(about)
    took = take_number(about, "e2e_latency", "meta_info") or 0.0
    sampling = take(asked, "sampling_params", dict, "obj") or {}
    labels = take(asked, "custom_labels", dict, "obj") or {}
    session_params = take(asked, "session_params", dict, "obj") or {}
    labelled_session = take_text(labels, "session_id", "custom_labels")
    session_id = labelled_session or take_text(session_params, "id", "session")
    is_stop_unknown = ended == "stop" and stop_reason is None
    return Exchange(
        place=place,
        prompt_token_ids=prompt_ids,
        prompt_text=prompt_text if prompt_ids is None else None,
        prompt_is_raw=prompt_ids is None,
        completion_token_ids=completion_ids,
        content=content,
        finish_reason=ended,
        stop_reason=stop_reason,
        stop_strings=stop_strings(sampling) if is_stop_unknown else (),
        completion_tokens=counted,
        # Logged only for a LoRA adapter, whose traffic is not the target's.
        model=take_text(asked, "lora_path", "obj"),
        session=session_id or session,
        tenant=take_text(labels, "tenant", "custom_labels"),
        route=take_text(labels, "route", "custom_labels"),
        # The line is written when the response has ended; the latency counts from the arrival.
        time=None if finished is None else finished - took,
        seconds=took or None,
        **sampling_of(sampling, "sampling_params"),
    )


def _end(about: dict[str, Any]) -> tuple[str, int | str | None]:
    reason = about.get("finish_reason")
    if not isinstance(reason, dict):
        raise Reject("not_finished", "meta_info.finish_reason is not an object")
    ended = finish_reason(take(reason, "type", str, "finish_reason"))
    return ended, take(reason, "matched", (int, str), "finish_reason")


def _without_cut_text(holder: dict[str, Any], key_of_ids: str) -> dict[str, Any]:
    """Returns a side without its text if that is cut and the ids are whole, which may be shorter.

    Both have the same limit (`log_requests_level` 2: 2,048 characters or ids).
    """
    ids = holder.get(key_of_ids)
    if not isinstance(ids, list) or not ids or _is_cut(ids) or not _is_cut(holder.get("text")):
        return holder
    return {key: value for key, value in holder.items() if key != "text"}


def _check_whole(holder: dict[str, Any], where: str, keys: tuple[str, ...]) -> None:
    if not any(key in holder for key in keys):
        raise Reject("text_not_logged", f"no {where}.{keys[0]}; {LEVEL_3}")
    for key in keys:
        if _is_cut(holder.get(key)):
            raise Reject("truncated_log", f"{where}.{key} is cut in the middle; {LEVEL_3}")


def _is_cut(value: Any) -> bool:
    """Whether SGLang has cut a text or list in the middle, or has a digest instead of the text."""
    if not isinstance(value, str):
        return isinstance(value, list) and DOTS in value
    has_dots = value[KEPT : KEPT + len(DOTS)] == DOTS
    is_shortened = has_dots and len(value) == 2 * KEPT + len(DOTS)
    # Levels 1 and 2 write a digest in place of some texts.
    is_digest = re.fullmatch(r"<\w+: \d+ chars, blake2b=\w+>", value) is not None
    return is_shortened or is_digest
