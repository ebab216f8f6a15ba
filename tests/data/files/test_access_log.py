"""Access logs of nginx with bodies, escaped in either way."""

import json

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.access_log import row_of_access_line
from outrider.data.files.sources import log_files
from tests.data.logs import pair, read_exchanges

ASKED = {"model": "m", "messages": [{"role": "user", "content": 'Say "é"\n'}], "user": "u1"}
ROW = pair(ASKED["messages"], "r\n", "\n\na")
BEFORE = '10.0.0.1 - - [01/Jul/2026:12:00:00 +0200] "{} /v1/chat/completions HTTP/1.1" 200 17 1.5'


def by_bytes(text: str) -> str:
    """A variable as `log_format` writes it by default."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}"
        for byte in text.encode()
    )


def as_json(text: str) -> str:
    """A variable with `escape=json`."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def line(escape, *bodies: str, method: str = "POST") -> str:
    quoted = " ".join(f'body:"{escape(body)}"' for body in bodies)
    return f'{BEFORE.format(method)} "python/3" {quoted}'


@pytest.mark.parametrize("escape", [by_bytes, as_json])
@pytest.mark.parametrize("is_stream", [False, True])
def test_bodies_of_an_access_log_are_an_exchange(tmp_path, escape, is_stream):
    answer = json.dumps(ROW["response"])
    if is_stream:
        delta = {"reasoning": "r\n", "content": "\n\na"}
        chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        answer = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    lines = [
        line(escape, json.dumps(ASKED), answer),
        line(escape, "-", '{"object": "list", "data": []}', method="GET"),
        BEFORE.format("GET"),
        line(escape, json.dumps(ASKED), "-").replace(" 200 ", " 499 "),
    ]
    path = tmp_path / "access.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    outcomes = list(read_exchanges(log_files(str(path))))
    exchange = outcomes[0]
    assert isinstance(exchange, Exchange)
    assert exchange.messages == ASKED["messages"]
    assert (exchange.reasoning, exchange.content) == ("r\n", "\n\na")
    assert (exchange.time, exchange.user) == (1_782_900_000.0, "u1")
    reasons = [outcome.reason for outcome in outcomes[1:] if isinstance(outcome, Reject)]
    assert reasons == ["not_a_generation", "not_a_generation", "error_response"]


def test_other_lines_are_no_rows() -> None:
    for text in (b"", b'"POST /x', b"{}", BEFORE.format("POST").encode()):
        assert row_of_access_line(text) is None
    with pytest.raises(Reject, match="without a request's body"):
        row_of_access_line(line(by_bytes, '{"data": []}', method="GET").encode())


def test_a_text_with_an_escape_in_it_is_read_as_the_line_is_escaped() -> None:
    answer = json.dumps({"choices": [{"message": {"content": "write \\xAB or \\x1B"}}]})
    for escape in (by_bytes, as_json):
        row = row_of_access_line(line(escape, json.dumps(ASKED), answer).encode())
        assert row is not None and json.loads(row["response"]) == json.loads(answer)


def test_a_cut_line_takes_linear_time() -> None:
    cut = '\\"content\\": \\"abc\\", ' * 50_000
    assert row_of_access_line(f'{BEFORE.format("POST")} "{{{cut}'.encode()) is None
