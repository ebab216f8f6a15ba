"""Lines inside collectors' records, however the records are nested."""

import json

import pytest

from outrider.data.files.record_lines import lines_in

LINE = "INFO 07-01 10:00:00 [logger.py:39] Received request"


def nested(levels: int) -> list:
    """A list in a list, and so on."""
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def test_otlp_s_lines_are_found_also_in_an_array_of_documents() -> None:
    record = {"body": {"stringValue": LINE}, "timeUnixNano": "1"}
    document = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    for value in (document, [document], {"batches": [document]}):
        (line,) = lines_in(value)
        assert line.text == LINE and line.holders[-1] == record


@pytest.mark.parametrize("levels", [20, 900])
def test_values_that_are_nested_too_deeply_have_no_lines(levels: int) -> None:
    assert [*lines_in(nested(levels))] == []
    assert [*lines_in({"records": nested(levels)})] == []
    inner = json.dumps({"log": nested(levels)})
    (line,) = lines_in({"log": inner})
    assert line.text == inner


def test_fields_and_values_of_cloudwatch_s_results_are_a_record() -> None:
    record = {"@timestamp": "2026-07-01 10:00:00.250", "@message": LINE}
    row = [{"field": name, "value": value} for name, value in record.items()]
    document = {"results": [row, row], "status": "Complete"}
    lines = [*lines_in(document)]
    assert [(line.text, line.holders[-1]) for line in lines] == [(LINE, record)] * 2
