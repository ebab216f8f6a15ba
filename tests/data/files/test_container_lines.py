"""Lines that containers' log drivers wrapped and cut, by the drivers' own rules."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from outrider.data.files.container_lines import join_container_lines
from tests.data.files.packers import DRIVERS, LIMIT, TIME, cri, json_file, with_times

STAMP = f"{TIME} ".encode()


def read(stored: bytes, longest: int = 10**7) -> list[tuple[int, bytes | None]]:
    lines = enumerate(stored.splitlines(), start=1)
    return list(join_container_lines(lines, longest))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("length", [LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT, 3 * LIMIT + 5])
def test_a_line_of_any_length_is_whole_again(driver, length):
    text = b"a line " + b"x" * (length - 7)
    row = b'{"a": "' + b"x" * (length - 9) + b'"}'
    lines = [line for _, line in read(DRIVERS[driver]([text, row])) if b"progress" not in line]
    # The time stays in front of text, for the formats that read it, and not in front of JSON.
    assert lines == [STAMP + text, row]


def test_pieces_are_joined_by_stream_and_have_the_number_of_the_first():
    long = b"x" * (2 * LIMIT)
    assert read(cri([b"first", long])) == [
        (1, STAMP + b"first"),
        (3, STAMP + b"progress 1"),
        (2, STAMP + long),
    ]


def test_a_time_inside_a_text_stays():
    row = json.dumps({"text": "now " + STAMP.decode() + "x" * 2 * LIMIT}).encode()
    assert read(with_times([row])) == [(1, row)]


@pytest.mark.parametrize("drive", [cri, json_file])
def test_the_first_pieces_of_a_line_that_was_rotated_away_are_not_lost(drive):
    stored = drive([b"y" * (LIMIT + 10)]).splitlines()[0]
    assert read(stored) == [(1, STAMP + b"y" * LIMIT)]


def test_a_line_above_the_limit_is_not_held():
    assert read(cri([b"y" * 3 * LIMIT, b"z"]), LIMIT)[-1] == (6, STAMP + b"z")
    assert (1, None) in read(cri([b"y" * 3 * LIMIT]), LIMIT)


def test_a_character_that_json_file_has_cut_is_not_invented():
    # Docker replaces the invalid bytes at both sides of a cut.
    row = b'{"a": "' + b"x" * (LIMIT - 8) + "ü".encode() + b'"}'
    ((_, line),) = read(json_file([row]))
    assert line is not None
    with pytest.raises(UnicodeDecodeError):
        line.decode()


@pytest.mark.parametrize(
    "line",
    [
        b'{"log": "a text", "request": {}, "response": {}}',
        b'{"log": "only"}',
        b'{"log": {"a": 1}, "time": "x"}',
        b'{"request": {"messages": []}}',
        b"2026-07-01 12:00:00 INFO text",
        b"",
    ],
)
def test_other_lines_are_unchanged(line):
    assert [line] == [text for _, text in join_container_lines(iter([(1, line)]), 10**6)]


def test_compose_writes_the_service_first():
    assert read(b'gateway-1  | {"a": 1}\nvllm-1 | ' + STAMP + b"text") == [
        (1, b'{"a": 1}'),
        (2, STAMP + b"text"),
    ]


@pytest.mark.parametrize("labels", ["{}", '{app="gateway"}', '{app="a}b", pod="g\\"w-0"}'])
@pytest.mark.parametrize("line", [b'{"a": 1}', b"INFO 07-01 10:00:00 [x.py:1] Received request a"])
def test_logcli_writes_labels_after_the_time(labels, line):
    before = STAMP + labels.encode() + b" "
    after = b"" if line.startswith(b"{") else STAMP
    assert read(before + line) == [(1, after + line)]
    assert read(STAMP + b"{}") == [(1, b"{}")]


def test_fluent_bit_writes_tag_and_time_before_a_record():
    line = b'kube.var.log: [1782900000.250000000, {"log":"a ]", "stream":"stdout"}]'
    ((_, record),) = read(line)
    assert json.loads(record) == {"date": 1782900000.25, "log": "a ]", "stream": "stdout"}


@pytest.mark.parametrize("key", ["log", "message"])
@pytest.mark.parametrize("form", ["JSON", "default"])
def test_fluent_bit_joins_no_pieces_of_cri_unless_told(key, form):
    pieces = [("stdout", "P", '{"a": '), ("stderr", "F", "warning"), ("stdout", "F", "1}")]
    lines = []
    for number, (stream, tag, text) in enumerate(pieces):
        record = json.dumps({"stream": stream, "logtag": tag, key: text})
        time = f"178290000{number}.250000000"
        lines.append(record if form == "JSON" else f"kube.var.log: [{time}, {record}]")
    assert [line for _, line in read("\n".join(lines).encode())] == [b"warning", b'{"a": 1}']


@given(st.permutations([pod for pod in range(3) for _ in range(3)]))
def test_pieces_of_several_containers_are_joined_apart(order):
    pieces = {pod: iter(f"{pod}a {pod}b {pod}c".split()) for pod in range(3)}
    counts = dict.fromkeys(range(3), 0)
    records = []
    for pod in order:
        counts[pod] += 1
        tag = "F" if counts[pod] == 3 else "P"
        about = {"pod_name": f"gateway-{pod}", "namespace_name": "llm"}
        record = {"log": next(pieces[pod]), "stream": "stdout", "logtag": tag, "kubernetes": about}
        records.append(json.dumps(record).encode())
    lines = {line for _, line in read(b"\n".join(records))}
    assert lines == {f"{pod}a{pod}b{pod}c".encode() for pod in range(3)}


def test_entries_that_cloud_logging_has_split_are_joined():
    def entry(uid, index, text):
        split = {"uid": uid, "index": index, "totalSplits": 2}
        return json.dumps({"textPayload": text, "timestamp": TIME, "split": split}).encode()

    pieces = [
        entry("a", 0, '{"a": '),
        entry("b", 0, "INFO "),
        entry("a", 1, "1}"),
        entry("b", 1, "x"),
    ]
    assert read(b"\n".join(pieces)) == [(1, b'{"a": 1}'), (2, STAMP + b"INFO x")]


BEFORE_OBJECTS = [
    "2026-07-01T10:00:00+00:00\tgateway.r1\t",  # Fluentd's out_file
    "2026-07-01 10:00:00.000000000 +0000 gateway.r1: ",  # Fluentd's stdout
    "Jul  1 10:00:00 host gateway[12]: ",  # syslog, RFC 3164; journalctl
    "<34>Jul  1 10:00:00 host gateway: ",
    '<34>1 2026-07-01T10:00:00.003Z host gateway 12 ID47 [example@1 iut="3"] ',  # RFC 5424
    "2026-07-01T10:00:00+0200 host gateway[12]: ",  # journalctl -o short-iso
    "2026-07-01 10:00:00,123 INFO gateway: ",  # Python's logging
    "2026-07-01 10:00:00,123 - gateway - INFO - ",
    "INFO:gateway:",
    "2026-07-01 10:00:00 [INFO] [gateway.py:30] ",
    "[2026-07-01 10:00:00] INFO: ",
    "2026/07/01 10:00:00 ",  # Go's log
    "2026-07-01T10:00:00Z 2026-07-01 10:00:00,123 INFO gateway: ",  # in `docker logs -t`
    "2026-07-01T10:00:00Z stdout F INFO:gateway:",  # in a CRI file
]


@pytest.mark.parametrize("before", BEFORE_OBJECTS)
@pytest.mark.parametrize(
    "row", [b'{"a": "} {", "b": [{}]}', b'{ "a": {"b": "INFO {"} } ', b"{'a': '} {', 'b': 1}"]
)
def test_a_short_text_before_an_object_is_removed(before, row):
    assert read(before.encode() + row) == [(1, row)]


@pytest.mark.parametrize(
    "line",
    [
        b'INFO 07-01 12:00:00 [x.py:1] Request a JSON body: {"model": "r1"}',
        STAMP + b'DEBUG 07-01 12:00:00 [x.py:1] Request a JSON body: {"model": "r1"}',
        b"DEBUG 07-01 12:00:00 [x.py:1] Request a details: prompt: '{\"a\": 1}'",
        b'[2026-07-01 10:00:00] Finish: obj=GenerateReqInput(rid=\'x\'), out={"text": "a"}',
        b'[1, {"a": 1}]',
        b'[{"a": 1}, {"b": 1}]',
        b'INFO call {"a": 1} took 3 s',
        b'he wrote {"a": 1}',
    ],
)
def test_lines_of_other_formats_and_other_text_are_unchanged(line):
    assert read(line) == [(1, line)]


@pytest.mark.parametrize(
    "before",
    [
        b"<30>1 2026-07-01T10:00:00.25+00:00 gpu-1 vllm 41 - - ",
        b'<14>1 2026-07-01T10:00:00.25+00:00 gpu-1 r1 - ID7 [x@1 a="b"] ',
        b"2026-07-01T10:00:00.25+0000 gpu-1 vllm[41]: ",
        b"2026-07-01T10:00:00.25+00:00 app[web.1]: ",
        b"<30>2026-07-01T10:00:00.25+00:00 gpu-1 docker/r1[41]: ",
    ],
)
def test_syslog_s_time_stays_and_its_host_and_program_go(before):
    line = b"INFO 07-01 10:00:00 [x.py:1] Received request a: params"
    (unwrapped_line,) = join_container_lines(iter([(1, before + line)]), 1 << 30)
    assert unwrapped_line == (1, b"2026-07-01T10:00:00.25+00:00 " + line)
    (object_line,) = join_container_lines(iter([(1, before + b'{"a": 1}')]), 1 << 30)
    assert object_line == (1, b'{"a": 1}')


@pytest.mark.parametrize(
    "text", [b"INFO:     10.0.0.7:5150 - x", b"Request a: prompt: 'x'", b"host vllm: b"]
)
def test_what_is_no_program_s_name_stays(text):
    line = b"2026-07-01T10:00:00.25Z " + text
    assert list(join_container_lines(iter([(1, line)]), 1 << 30)) == [(1, line)]
