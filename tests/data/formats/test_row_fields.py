"""Times, durations and users by the rules of those who write them."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from outrider.data.formats.rows.row_fields import fields, time_of_uuid
from tests.data.logs import read_exchanges, write_log

OF_RFC = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
"""RFC 9562, appendix A.6: 2022-02-22 14:22:22 in New York."""


def test_a_uuid_of_version_7_has_its_time() -> None:
    assert time_of_uuid(OF_RFC) == time_of_uuid(OF_RFC.upper()) == 1645557742.0


@pytest.mark.parametrize(
    ("logged", "time"),
    [({"id": OF_RFC}, 1645557742.0), ({"id": OF_RFC, "created_at": 1793861310}, 1793861310.0)],
)
def test_the_time_in_an_id_counts_where_no_other_is_logged(
    tmp_path: Path, logged: dict[str, Any], time: float
) -> None:
    row = {"input": [{"role": "user", "content": "Is it?"}], "output": "Yes."}
    log = write_log(tmp_path / "log.jsonl", [{**row, **logged}])
    (exchange,) = read_exchanges(log_files(str(log)))
    assert isinstance(exchange, Exchange) and exchange.time == time


@pytest.mark.parametrize("version", [1, 4, 5])
def test_other_uuids_have_no_time(version: int) -> None:
    assert time_of_uuid(str(uuid.UUID(int=uuid.UUID(OF_RFC).int, version=version))) is None


@pytest.mark.parametrize("text", [None, 7, "", OF_RFC[:-1], f"{OF_RFC}0", OF_RFC.replace("-", "")])
def test_what_is_no_uuid_has_no_time(text: Any) -> None:
    assert time_of_uuid(text) is None


def event_of_posthog(**changed: Any) -> dict[str, Any]:
    properties = {"$ai_latency": 1.5, "$ai_model": "r1"}
    event = {"event": "$ai_generation", "timestamp": 1_780_000_010, "properties": properties}
    return event | changed


def test_an_event_of_posthog_is_written_after_its_call() -> None:
    logged = fields(event_of_posthog())
    assert (logged["time"], logged["seconds"]) == (1_780_000_008.5, 1.5)


@pytest.mark.parametrize(
    "changed",
    [{"event": "llm_call"}, {"properties": {"$ai_latency": 0}}, {"properties": {}}],
)
def test_other_events_began_at_their_time(changed: dict[str, Any]) -> None:
    assert fields(event_of_posthog(**changed))["time"] == 1_780_000_010


def test_an_application_s_tag_counts_before_tensorzeros_episode() -> None:
    row = {"episode_id": "e-1", "input": "a"}
    assert fields(row)["session"] == "e-1"
    assert fields({**row, "tags": {"conversation_id": "c-7"}})["session"] == "c-7"


def test_an_end_user_is_read_wherever_facts_are() -> None:
    for name in ("endUser", "end_user", "enduser"):
        assert fields({"requestMetadata": {name: "eu-7"}})["user"] == "eu-7"
