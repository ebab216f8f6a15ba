"""CloudEvents that a program printed, each over several lines, as one line of JSON.

    ☁️  cloudevents.Event
    Context Attributes,
      specversion: 1.0
      id: 28ee5345
    Data,
      {
        "messages": []
      }

Go's SDK prints events so (sdk-go v2, event/event.go, `String`): knative's event_display and the
message dumper of KServe's examples write what the inference logger sends to their output.
"""

import json
from collections.abc import Iterable, Iterator

HEAD = b"cloudevents.Event"

SECTIONS = (b"Context Attributes,", b"Extensions,", b"Data,", b"Data (binary),")
VALIDATION = b"Validation: "

Numbered = tuple[int, bytes | None]


def join_printed_events(lines: Iterable[Numbered], longest: int) -> Iterator[Numbered]:
    """Yields lines; those of an event as one, with the number of its first line.

    Lines of an event above `longest` bytes stay as they are.
    """
    pending: list[tuple[int, bytes]] = []
    size = 0
    for number, line in lines:
        begins = line is not None and line.rstrip().endswith(HEAD)
        if pending and (line is None or begins or not _is_inner(line) or size > longest):
            yield from _as_one(pending)
            pending = []
        if line is not None and (begins or pending):
            size = len(line) if begins else size + len(line)
            pending.append((number, line))
        else:
            yield number, line
    yield from _as_one(pending)


def _is_inner(line: bytes) -> bool:
    bare = line.rstrip()
    return not bare or line[:1] == b" " or bare in SECTIONS or line.startswith(VALIDATION)


def _as_one(pending: list[tuple[int, bytes]]) -> Iterator[Numbered]:
    """Yields an event's lines as one; as they are, if they are no whole event."""
    event: dict[str, str] = {}
    data: list[str] = []
    section = b""
    for _, line in pending:
        text = line.rstrip()
        if text in SECTIONS:
            section = text
        elif section.startswith(b"Data"):
            data.append(line[2:].decode("utf-8", "surrogateescape"))
        elif section and b": " in text:
            name, _, value = text.strip().decode("utf-8", "surrogateescape").partition(": ")
            event[name] = value
    if "id" in event and data:
        joined = json.dumps({**event, "data": "\n".join(data)})
        yield pending[0][0], joined.encode("utf-8", "surrogateescape")
    else:
        yield from pending
