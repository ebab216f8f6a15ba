"""Rows of query results, whose columns' names are apart from their values.

query_result_rows({"meta": [{"name": "request"}], "data": [["{...}"], ["{...}"]]})
# [{"request": "{...}"}, {"request": "{...}"}]
"""

from typing import Any

from outrider.data.formats.rows.paths import normalize_key

LAYOUTS = (
    ("manifest.schema.columns", "result.data_array"),
    ("result_set_meta_data.row_type", "data"),
    ("schema.fields", "rows"),
    ("result_set.result_set_metadata.column_info", "result_set.rows"),
    ("column_metadata", "records"),
    ("meta", "data"),
    ("columns", "rows"),
    ("columns", "data"),
)
"""Paths of the columns and of the rows: Databricks' statements, Snowflake's SQL API, BigQuery's
jobs, Athena, Redshift's and RDS' Data API, ClickHouse's JSONCompact, Azure Monitor and
Elasticsearch's SQL, Trino and pandas' `split`."""

PAIRS = "results"
"""Path of rows that are lists of a field and a value: CloudWatch Logs Insights."""


def query_result_rows(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the rows of a query's result as objects; None for any other document."""
    for columns_path, rows_path in LAYOUTS:
        rows = _list_at(document, rows_path)
        columns = _list_at(document, columns_path) if rows else None
        if not rows or not columns:
            continue
        logged = [_name_of(column) if isinstance(column, dict) else column for column in columns]
        names = [name for name in logged if isinstance(name, str)]
        cells = [row for row in map(_cells, rows) if row is not None and len(row) == len(names)]
        if len(names) == len(columns) and len(cells) == len(rows):
            # Athena's first page begins with the names.
            return [dict(zip(names, row, strict=True)) for row in cells if row != names]
    by_column = _of_columns(document) or _of_value_lists(document)
    if by_column:
        return by_column
    pairs = [_of_pairs(row) for row in _list_at(document, PAIRS) or []]
    filled = [row for row in pairs if row]
    return filled if filled and len(filled) == len(pairs) else None


def _of_columns(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the rows of columns that are objects with numbers as keys: pandas' `to_json`."""
    columns = list(document.values())
    if len(columns) < 2 or not all(isinstance(column, dict) and column for column in columns):
        return None
    index = list(columns[0])  # with gaps, if rows were left out
    if not all(map(str.isdecimal, index)) or any(list(column) != index for column in columns):
        return None
    return [{name: column[at] for name, column in document.items()} for at in index]


def _of_value_lists(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Converts columns, each a list of values, to rows.

    Logfire has `{"columns": [{"name": ..., "values": [...]}]}`, and a frame of Grafana's data
    sources `{"schema": {"fields": [{"name": ...}]}, "data": {"values": [[...], [...]]}}`.
    """
    columns = _list_at(document, "columns") or _list_at(document, "schema.fields") or []
    if not columns or not all(isinstance(column, dict) for column in columns):
        return None
    names = [_name_of(column) for column in columns]
    values = _list_at(document, "data.values") or [column.get("values") for column in columns]
    are_lists = len(values) == len(names) and all(isinstance(column, list) for column in values)
    if not are_lists or len(set(map(len, values))) != 1 or len(set(map(str, names))) != len(names):
        return None
    return [dict(zip(names, cells, strict=True)) for cells in zip(*values, strict=True)]


def _name_of(column: dict[str, Any]) -> Any:
    return column.get("name", column.get("Name"))


def _of_pairs(row: Any) -> dict[str, Any] | None:
    """Returns `[{"field": "@message", "value": "..."}]` as an object."""
    if not isinstance(row, list) or not all(isinstance(pair, dict) for pair in row):
        return None
    if not all(isinstance(pair.get("field"), str) and "value" in pair for pair in row):
        return None
    return {pair["field"]: pair["value"] for pair in row}


def _list_at(document: dict[str, Any], path: str) -> list[Any] | None:
    value: Any = document
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = next((inner for key, inner in value.items() if normalize_key(key) == name), None)
    return value if isinstance(value, list) else None


def _cells(row: Any) -> list[Any] | None:
    """Returns a row's values.

    BigQuery has `{"f": [{"v": value}]}`, Athena `{"Data": [{"VarCharValue": value}]}`, and the Data
    API `[{"stringValue": value}]`.
    """
    if isinstance(row, dict) and len(row) == 1:
        (row,) = row.values()
    return [_plain(cell) for cell in row] if isinstance(row, list) else None


def _plain(cell: Any) -> Any:
    """Returns a cell's value without its type; an empty object is null."""
    if not isinstance(cell, dict) or len(cell) > 1:
        return cell
    key, value = next(iter(cell.items()), ("isNull", True))
    if normalize_key(key) == "is_null":
        return None
    return value if key == "v" or normalize_key(key).endswith("_value") else cell
