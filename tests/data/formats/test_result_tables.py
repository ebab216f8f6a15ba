"""Rows of queries' results, whose columns' names are apart from their values."""

import json
from typing import Any

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.rows.result_tables import query_result_rows
from tests.data.logs import pair, read_exchanges

NAMES = ["time", "who", "request", "response"]
COLUMNS = [{"name": name, "type": "string"} for name in NAMES]


def cells(number: int) -> list[Any]:
    row = pair([{"role": "user", "content": f"Hi {number}"}], "r\n", "a")
    sides = [json.dumps(row[side]) for side in ("request", "response")]
    return [f"2026-07-01T10:00:0{number}Z", None, *sides]


ROWS = [cells(number) for number in range(3)]
DOCUMENTS = {
    "ClickHouse": {"meta": COLUMNS, "data": ROWS, "rows": 3},
    "Databricks": {"manifest": {"schema": {"columns": COLUMNS}}, "result": {"data_array": ROWS}},
    "BigQuery": {
        "schema": {"fields": COLUMNS},
        "rows": [{"f": [{"v": cell} for cell in row]} for row in ROWS],
    },
    "Snowflake": {"resultSetMetaData": {"rowType": COLUMNS}, "data": ROWS},
    "Azure Monitor": {"tables": [{"name": "PrimaryResult", "columns": COLUMNS, "rows": ROWS}]},
    "Elasticsearch": {"columns": COLUMNS, "rows": ROWS},
    "Trino": {"id": "q", "columns": COLUMNS, "data": ROWS, "stats": {}},
    "pandas": {"columns": NAMES, "index": [0, 1, 2], "data": ROWS},
    "pandas by column": {
        name: {str(number): row[at] for number, row in enumerate(ROWS)}
        for at, name in enumerate(NAMES)
    },
    "Athena": {
        "ResultSet": {
            "Rows": [{"Data": [{"VarCharValue": cell} for cell in row]} for row in [NAMES, *ROWS]],
            "ResultSetMetadata": {"ColumnInfo": [{"Name": name} for name in NAMES]},
        }
    },
    "Redshift": {
        "ColumnMetadata": COLUMNS,
        "Records": [
            [{"isNull": True} if cell is None else {"stringValue": cell} for cell in row]
            for row in ROWS
        ],
    },
    "CloudWatch": {
        "results": [
            [{"field": name, "value": cell} for name, cell in zip(NAMES, row, strict=True)]
            for row in ROWS
        ]
    },
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_rows_of_any_result_are_read(tmp_path, name, indent):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(DOCUMENTS[name], indent=indent))
    outcomes = list(read_exchanges(log_files(str(path))))
    exchanges = [outcome for outcome in outcomes if isinstance(outcome, Exchange)]
    assert len(exchanges) == len(outcomes) == 3
    assert [exchange.messages[0]["content"] for exchange in exchanges] == ["Hi 0", "Hi 1", "Hi 2"]
    assert [exchange.time for exchange in exchanges] == [1782900000.0, 1782900001.0, 1782900002.0]


@pytest.mark.parametrize(
    "document",
    [
        {"meta": COLUMNS, "data": [ROWS[0], ROWS[1][:-1]]},
        {"meta": COLUMNS, "data": []},
        {"columns": NAMES, "rows": [dict(zip(NAMES, ROWS[0], strict=True))]},
        {"columns": [1, 2], "rows": [[1, 2]]},
        {"columns": "a", "rows": [["a"]]},
        {"request": {"body": 1, "headers": 2}, "response": {"body": 3, "headers": 4}},
        {"request": {"0": 1}, "response": {"0": 1, "1": 2}},
        {"results": [[{"field": "a"}]]},
        {"results": [{"field": "a", "value": 1}]},
    ],
)
def test_other_documents_are_no_results(document):
    assert query_result_rows(document) is None


def test_a_result_without_calls_is_refused(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"columns": ["a", "b"], "rows": [["1", "2"]]}))
    (reject,) = read_exchanges(log_files(str(path)))
    assert isinstance(reject, Reject) and reject.reason == "unknown_format"
