"""CloudEvents that Go's SDK has printed are joined; other lines stay."""

import json

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.cloud_events import join_printed_events
from outrider.data.files.sources import log_files
from tests.data.logs import pair, read_exchanges

MESSAGES = [{"role": "user", "content": "Is it?\n  Data,"}]

LONGEST = 1 << 20


def printed(event_id: str, kind: str, data: object, head: str = "☁️  cloudevents.Event") -> str:
    """An event as sdk-go v2 prints it."""
    body = "\n".join(f"  {line}" for line in json.dumps(data, indent=2).splitlines())
    return (
        f"{head}\nContext Attributes,\n  specversion: 1.0\n"
        f"  type: org.kubeflow.serving.inference.{kind}\n  source: http://localhost:9081/\n"
        f"  id: {event_id}\n  datacontenttype: application/json\n"
        f"Extensions,\n  component: predictor\nData,\n{body}\n"
    )


def joined(text: str, longest: int = LONGEST) -> list[bytes | None]:
    lines = [line.encode() for line in text.split("\n")]
    return [line for _, line in join_printed_events(enumerate(lines, start=1), longest)]


@pytest.mark.parametrize("head", ["☁️  cloudevents.Event", "☁️ cloudevents.Event\nValidation: valid"])
def test_halves_of_calls_are_joined_by_their_events_id(tmp_path, head):
    calls = [pair(MESSAGES, f"r{number}\n", f"a{number}") for number in range(3)]
    halves = [("request", number) for number in range(3)]
    halves += [("response", number) for number in (1, 0, 2)]
    text = "".join(printed(f"e{at}", side, calls[at][side], head) for side, at in halves)
    path = tmp_path / "dumper.log"
    path.write_text(f"started\n{text}stopped\n")
    read = [one for one in read_exchanges(log_files(str(path))) if isinstance(one, Exchange)]
    assert {(one.reasoning, one.content) for one in read} == {
        ("r0\n", "a0"),
        ("r1\n", "a1"),
        ("r2\n", "a2"),
    }
    assert all(one.messages == MESSAGES for one in read)


def test_lines_around_events_stay():
    text = f"before\n{printed('e1', 'request', {'a': 1})}after\n  inner\n"
    before, event, after, inner, end = joined(text)
    assert (before, after, inner, end) == (b"before", b"after", b"  inner", b"")
    assert json.loads(event or b"")["data"] == '{\n  "a": 1\n}\n'.rstrip("\n")


def test_what_is_no_whole_event_stays_as_it_is():
    text = "☁️  cloudevents.Event\nContext Attributes,\n  id: 7"
    assert joined(text) == [line.encode() for line in text.split("\n")]


def test_an_event_above_the_limit_stays_as_it_is():
    text = printed("e1", "request", {"a": "x" * 300}).rstrip("\n")
    assert len(joined(text, longest=100)) == len(text.split("\n"))
