"""Attributes of spans and log records, as exporters and tracing backends write them.

    attributes_of({"tags": [{"key": "gen_ai.system", "type": "string", "value": "openai"}]})
    # {"gen_ai.system": "openai"}

- OTLP's JSON, of the collector and of Grafana Tempo: pairs of a key and a typed value, with the
  proto's names in camel or snake case
- Jaeger's `tags`: pairs of a key and a plain value; Zipkin's `tags`: an object
- tables of ClickHouse (`SpanAttributes`) and Application Insights (`customDimensions`): an object,
  also as text
- SigNoz: one object per type (`attributes_string`, `attributes_number`)
- wide tables, such as Honeycomb's: columns of the row
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import first_value, take, take_mapping
from outrider.data.formats.rows.paths import normalize_key

HOLDERS = ("attributes", "span_attributes", "log_attributes", "tags", "custom_dimensions")
"""Names of what holds the attributes, in order of preference."""

TYPED = ("attributes_string", "attributes_number", "attributes_bool")
"""SigNoz's names."""

GENAI = "gen_ai."

_UNDERSCORED = re.compile(
    r"gen_ai_(prompt|completion)_(\d+)_(\w+)"
    r"|gen_ai_(request|response|usage|input|output|operation|conversation|tool)_(\w+)"
    r"|gen_ai_(system(?:_instructions)?)"
)
"""Attributes in stores whose columns and labels have no dots: OpenObserve, Loki."""

SPAN_LEVELS = (
    ("resource_spans", "scope_spans", "spans"),
    ("resource_spans", "instrumentation_library_spans", "spans"),  # OTLP before 0.15
    ("batches", "scope_spans", "spans"),  # Tempo
    ("batches", "instrumentation_library_spans", "spans"),
    ("resource_logs", "scope_logs", "log_records"),
)
"""Names of the lists around spans and log records."""

OUTER = frozenset({"resourceSpans", "resourceLogs", "resource_spans", "resource_logs", "batches"})
"""Keys of a batch, one of which it has."""

_OF_SPAN = re.compile(
    r"(.+[._])?(trace|span)_?id|gen_ai[._](prompt|completion|input|output|system_instructions)[._].+"
    r"|gen_ai[._](prompt|completion|system_instructions)"
)
"""Names of a flat row's values, one of which a span has. Access logs have counts of tokens under
the conventions' names, too (Envoy AI Gateway)."""

TYPED_COLUMNS = frozenset({"string_value", "int_value", "float_value", "double_value"})
"""Columns of a value in Google Analytics' export."""

_OF_CALL = re.compile(
    r"gen_ai\.(?:prompt|completion)\.\d+\.content|gen_ai\.(?:input|output)\.messages"
    r"|llm\.(?:input|output)_messages\.\d+\.message\.content"
)
"""Names of the texts of a call: OpenLLMetry, GenAI's conventions, OpenInference."""

_OF_ANSWER = re.compile("completion|output")

IS_AROUND = "outrider.is_around"
"""Key that `mark_outer_spans` sets in a span around another one of the same call."""

ALL_HOLDERS = frozenset({*HOLDERS, *TYPED})


def is_otlp(row: dict[str, Any]) -> bool:
    """Whether a row is a batch of spans or log records."""
    if OUTER.isdisjoint(row):
        return False
    for outer, middle, _ in SPAN_LEVELS:
        resources = _named(row, outer)
        if outer != "batches" and resources is not None:
            return True
        members = resources if isinstance(resources, list) else []
        if any(isinstance(member, dict) and _named(member, middle) for member in members):
            return True
    return False


def spans_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the spans and log records of a batch, in order."""
    for levels in SPAN_LEVELS:
        holders = [row]
        for level in levels:
            lists = (_named(holder, level) for holder in holders)
            inner = [take({level: value}, level, list, "OTLP") or () for value in lists]
            holders = list(itertools.chain.from_iterable(inner))
            if not all(isinstance(holder, dict) for holder in holders):
                raise Reject("wrong_type", f"OTLP.{level} is not a list of objects")
        yield from holders


def attributes_of(holder: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a span, log record or event, possibly empty."""
    names = {normalize_key(key): key for key in holder}
    found = [_plain_attributes(holder, names[name]) for name in HOLDERS if name in names]
    typed = [take_mapping(holder, names[name], "span") for name in TYPED if name in names]
    if typed:
        found.append({key: value for part in typed for key, value in part.items()})
    if has_genai(holder):
        found.append(holder)
    with_messages = (attributes for attributes in found if has_genai(attributes))
    return _with_dots(next(with_messages, next(filter(None, found), {})))


def _with_dots(attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes under the conventions' names."""
    if not any(map(_UNDERSCORED.fullmatch, attributes)):
        return attributes
    dotted: dict[str, Any] = {}
    for key, value in attributes.items():
        match = _UNDERSCORED.fullmatch(key)
        parts = [part for part in match.groups() if part] if match else []
        dotted[".".join(["gen_ai", *parts]) if parts else key] = value
    return dotted


def has_genai(attributes: dict[str, Any]) -> bool:
    """Whether a name is one of the GenAI conventions."""
    return any(name.startswith(GENAI) or _UNDERSCORED.fullmatch(name) for name in attributes)


def has_genai_attributes(row: dict[str, Any]) -> bool:
    """Whether a row is a span or log record with the GenAI conventions' attributes."""
    if has_genai(row):
        return any(map(_OF_SPAN.fullmatch, map(normalize_key, row)))
    if ALL_HOLDERS.isdisjoint(map(normalize_key, row)):
        return False
    try:
        return has_genai(attributes_of(row))
    except Reject:
        return False


def mark_outer_spans(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns spans of which those are marked that have a child with the same texts.

    A framework's instrumentation and that of its client both write a span for a call.
    """
    whole = [span for span in spans if _id_of(span) is not None and _is_whole(span)]
    by_id = {(_named(span, "trace_id"), _id_of(span)): span for span in whole}
    around = set()
    for span in whole:
        parent = by_id.get((_named(span, "trace_id"), _parent_of(span) or ""))
        if parent is not None and parent is not span and _texts_of(parent) == _texts_of(span):
            around.add(id(parent))
    return [{**span, IS_AROUND: True} if id(span) in around else span for span in spans]


def _id_of(span: dict[str, Any]) -> str | None:
    value = _named(span, "span_id")
    return value if isinstance(value, str) else None


def _parent_of(span: dict[str, Any]) -> str | None:
    references = span.get("references")  # Jaeger's
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("refType") == "CHILD_OF":
            return _id_of(reference)
    value = first_value(*(_named(span, name) for name in ("parent_span_id", "parent_id")))
    return value if isinstance(value, str) and value else None


def _is_whole(span: dict[str, Any]) -> bool:
    """Whether a span has both sides of a call, and ids that can be compared."""
    trace = _named(span, "trace_id")
    is_answer = [_OF_ANSWER.search(name) is not None for name in _texts_of(span)]
    return isinstance(trace, str | None) and True in is_answer and False in is_answer


def _texts_of(span: dict[str, Any]) -> dict[str, Any]:
    try:
        logged = attributes_of(span)
    except Reject:
        return {}
    return {name: text for name, text in logged.items() if text and _OF_CALL.fullmatch(name)}


def _named(holder: dict[str, Any], name: str) -> Any:
    return next((value for key, value in holder.items() if normalize_key(key) == name), None)


def _plain_attributes(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder[key]
    is_pairs = isinstance(value, list)
    if normalize_key(key) == "tags" and (is_pairs or not isinstance(value, dict)):
        return _of_pairs(value) if isinstance(value, list) and _are_pairs(value) else {}
    return _of_pairs(value) if is_pairs else take_mapping(holder, key, "span")


def of_typed_pairs(value: list[Any]) -> dict[str, Any] | None:
    """Returns a repeated column of keys and typed values as an object: BigQuery's event_params."""
    if not value or not all(isinstance(pair, dict) and len(pair) == 2 for pair in value):
        return None
    if any(pair.keys() != {"key", "value"} for pair in value):
        return None
    values = {pair["key"]: _typed_value(pair["value"]) for pair in value}
    is_typed = all(isinstance(key, str) for key in values) and any(
        isinstance(pair["value"], dict) and not TYPED_COLUMNS.isdisjoint(pair["value"])
        for pair in value
    )
    return values if is_typed else None


def _typed_value(typed: Any) -> Any:
    """Returns the value of a column for each type, of which all but one are null."""
    held = typed.values() if isinstance(typed, dict) else [typed]
    return next((value for value in held if value is not None), None)


def _are_pairs(pairs: list[Any]) -> bool:
    return all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in pairs)


def _of_pairs(pairs: list[Any]) -> dict[str, Any]:
    """Converts `[{"key": ..., "value": {"stringValue": ...}}]` to a dict."""
    if not _are_pairs(pairs):
        raise Reject("wrong_type", "span.attributes is not a list of keys and values")
    return {pair["key"]: plain_value(pair.get("value")) for pair in pairs}


def plain_value(value: Any) -> Any:
    """Converts an OTLP value to a plain value; Jaeger's values are plain."""
    if not isinstance(value, dict):
        return value
    if not value:
        return None
    (key, held), *_ = value.items()
    kind = normalize_key(key)
    if kind in ("array_value", "kvlist_value"):
        values = take(take(value, key, dict, "value") or {}, "values", list, key) or []
        return _of_pairs(values) if kind == "kvlist_value" else list(map(plain_value, values))
    is_digits = isinstance(held, str) and held.lstrip("-").isdecimal() and len(held) < 20
    return int(held) if kind == "int_value" and is_digits else held
