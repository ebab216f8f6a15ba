"""Logs that were written from producers' documentation by someone who had not seen the readers.

In blind/cases.json, `right` was written before the first run, and `first_run` is how that went. The
other keys are what `right` says, as values: `first` is the first exchange, `words` are in the
message of a refusal.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges

FOLDER = Path(__file__).parent / "blind"
CASES = json.loads((FOLDER / "cases.json").read_bytes())


def described(exchange: Exchange) -> dict[str, Any]:
    messages = exchange.messages
    roles = [message["role"] for message in (messages or [])[:-1]]
    return {
        "before": roles,
        "question": messages[-1]["content"] if messages else exchange.prompt_text,
        "reasoning": exchange.reasoning,
        "content": exchange.content,
        "temperature": exchange.temperature,
        "top_p": exchange.top_p,
        "time": exchange.time,
        "session": exchange.session,
        "user": exchange.user,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_blind_log_is_read_or_refused_with_the_fix(case: dict[str, Any]) -> None:
    path = str(FOLDER / case["file"])
    if case["exchanges"] is None:
        with pytest.raises(OutriderError) as refused:
            log_files(path)
        assert [words for words in case["words"] if words not in str(refused.value)] == []
        return
    outcomes = list(read_exchanges(log_files(path)))
    exchanges = [outcome for outcome in outcomes if isinstance(outcome, Exchange)]
    rejects = [outcome for outcome in outcomes if isinstance(outcome, Reject)]
    assert len(exchanges) == case["exchanges"]
    assert Counter(reject.reason for reject in rejects) == case["rejects"]
    if exchanges:
        assert described(exchanges[0]) == case["first"]
    for words in case.get("words", []):
        assert any(words in reject.detail for reject in rejects), words
