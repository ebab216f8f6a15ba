"""Rows of query results, whose columns' names are apart from their values.

rows_of({"meta": [{"name": "request"}], "data": [["{...}"], ["{...}"]]})
# [{"request": "{...}"}, {"request": "{...}"}]
"""

from typing import Any

from outrider.data.formats.row_fields import normal_name

LAYOUTS = (
    ("manifest.schema.columns", "result.data_array"),
    ("result_set_meta_data.row_type", "data"),
    ("schema.fields", "rows"),
    ("meta", "data"),
    ("columns", "rows"),
    ("columns", "data"),
)
"""Paths of the columns and of the rows: Databricks' statements, Snowflake's SQL API, BigQuery's
jobs, ClickHouse's JSONCompact, Azure Monitor and Elasticsearch's SQL, Trino and pandas' `split`."""


def rows_of(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the rows of a query's result as objects; None for any other document."""
    for columns_path, rows_path in LAYOUTS:
        rows = _list_at(document, rows_path)
        columns = _list_at(document, columns_path) if rows else None
        if not rows or not columns:
            continue
        logged = [column.get("name") if isinstance(column, dict) else column for column in columns]
        names = [name for name in logged if isinstance(name, str)]
        cells = [row for row in map(_cells, rows) if row is not None and len(row) == len(names)]
        if len(names) == len(columns) and len(cells) == len(rows):
            return [dict(zip(names, row, strict=True)) for row in cells]
    return None


def _list_at(document: dict[str, Any], path: str) -> list[Any] | None:
    value: Any = document
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = next((inner for key, inner in value.items() if normal_name(key) == name), None)
    return value if isinstance(value, list) else None


def _cells(row: Any) -> list[Any] | None:
    """Returns a row's values; BigQuery has `{"f": [{"v": value}, ...]}`."""
    if isinstance(row, dict) and row.keys() == {"f"} and isinstance(row["f"], list):
        return [cell.get("v") if isinstance(cell, dict) else cell for cell in row["f"]]
    return row if isinstance(row, list) else None
