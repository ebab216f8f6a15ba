"""Messages that Azure API Management's log has cut into rows."""

import json

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges, write_log


def row(number: int, side: str, messages: list[dict]) -> dict:
    return {"CorrelationId": "c", "SequenceNumber": number, side: json.dumps(messages)}


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def test_a_message_goes_on_in_the_next_row(tmp_path):
    rest = [user("yz"), {"role": "assistant", "content": "Ok."}, user("And?")]
    rows = [
        row(1, "RequestMessages", rest),
        row(0, "RequestMessages", [user("x")]),
        row(2, "ResponseMessages", [{"role": "assistant", "content": "<think>\nHm"}]),
        row(3, "ResponseMessages", [{"role": "assistant", "content": ".\n</think>\n\nYes."}]),
    ]
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows))))
    assert isinstance(outcome, Exchange) and outcome.messages
    assert [message["content"] for message in outcome.messages] == ["xyz", "Ok.", "And?"]
    assert outcome.content == "<think>\nHm.\n</think>\n\nYes."
