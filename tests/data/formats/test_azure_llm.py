"""Messages that Azure API Management's log has cut into rows."""

import json

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from outrider.data.formats.readers.azure_llm import FULL_ROW
from tests.data.logs import read_exchanges, write_log


def row(number: int, side: str, messages: list[dict]) -> dict:
    return {"CorrelationId": "c", "SequenceNumber": number, side: json.dumps(messages)}


def user(content: str) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("first", "contents"),
    [("x" * FULL_ROW, ["x" * FULL_ROW + "yz", "Ok.", "And?"]), ("x", ["x", "yz", "Ok.", "And?"])],
)
def test_only_a_full_row_of_a_request_goes_on_in_the_next(tmp_path, first, contents):
    rest = [user("yz"), {"role": "assistant", "content": "Ok."}, user("And?")]
    rows = [
        row(1, "RequestMessages", rest),
        row(0, "RequestMessages", [user(first)]),
        row(2, "ResponseMessages", [{"role": "assistant", "content": "<think>\nHm"}]),
        row(3, "ResponseMessages", [{"role": "assistant", "content": ".\n</think>\n\nYes."}]),
    ]
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows))))
    assert isinstance(outcome, Exchange) and outcome.messages
    assert [message["content"] for message in outcome.messages] == contents
    assert outcome.content == "<think>\nHm.\n</think>\n\nYes."
