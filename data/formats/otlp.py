"""OTLP attributes, as lists of typed values or as plain objects.

attributes({"attributes": [{"key": "gen_ai.system", "value": {"stringValue": "vllm"}}]})
# {"gen_ai.system": "vllm"}
"""

from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.embedded import mapping
from outrider.data.formats.fields import take

ATTRIBUTES = ("attributes", "SpanAttributes", "LogAttributes")
"""The latter two are columns of the collector's ClickHouse tables."""


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a span, log record or event, in any notation; empty without any."""
    for key in ATTRIBUTES:
        value = holder.get(key)
        if isinstance(value, list) and not all(isinstance(item, tuple) for item in value):
            return _of_pairs(value)
        if value is not None:
            return mapping(holder, key, "span")
    return {}


def _of_pairs(pairs: list[Any]) -> dict[str, Any]:
    """OTLP's `[{"key": ..., "value": {"stringValue": ...}}]` as a dict."""
    if not all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in pairs):
        raise Reject("wrong_type", "span.attributes holds something other than keys with values")
    return {pair["key"]: plain(pair.get("value")) for pair in pairs}


def plain(value: Any) -> Any:
    """Plain value of an OTLP value."""
    if not isinstance(value, dict) or not value:
        return None
    (kind, held), *_ = value.items()
    if kind in ("arrayValue", "kvlistValue"):
        values = take(take(value, kind, dict, "value") or {}, "values", list, kind) or []
        return _of_pairs(values) if kind == "kvlistValue" else [plain(item) for item in values]
    if kind == "intValue":
        return (
            int(held)
            if isinstance(held, str) and held.lstrip("-").isdecimal() and len(held) < 20
            else held
        )
    return held
