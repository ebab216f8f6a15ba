"""Writes docs/report.schema.json and docs/report.md, every key of report.json, from the models of report_schema.py.

python -m outrider.eval.report.schema_reference      # a test says when they are out of date
"""

import json
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.eval.report import schema_figures as report_figures
from outrider.eval.report.schema import schema

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page() -> str:
    """The keys as Markdown: `Report` first, then each object in the order in which it is met."""
    definitions = (whole := schema()).pop("$defs")
    lines = [HEAD, *_table("report.json", whole)]
    for name in _in_order(whole, definitions, []):
        # What a generic model says of itself is not said of its kinds.
        said = (
            definitions[name].get("description")
            or getattr(report_figures, name.partition("_")[0]).__doc__
        )
        lines += ["", f"## {_title(name)}", "", said, "", *_table(name, definitions[name])]
    return "\n".join(lines) + "\n"


HEAD = """# report.json

<!-- Written by `python -m outrider.eval.report.schema_reference` from the models in eval/report/schema.py; change those. -->

What stands in `runs/NAME/report.json`; the same as JSON Schema is [report.schema.json](report.schema.json). What each figure means is in
[evaluation.md](evaluation.md). Shares are between 0 and 1, times in the unit that the key names.
"""


def _table(name: str, described: dict[str, Any]) -> list[str]:
    lines = [f"| key of {_title(name)} | type | |", "|---|---|---|"]
    for key, value in described["properties"].items():
        text = " ".join(value.get("description", "").split())
        lines.append(f"| `{key}` | {_type(value)} | {text} |")
    return lines


def _title(name: str) -> str:
    return name.replace("_", " ").strip()


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{_title(name)}](#{_title(name).lower().replace(' ', '-')})"
    if "anyOf" in value:
        return " or ".join(_type(one) for one in value["anyOf"])
    if "enum" in value or "const" in value:
        return " or ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    if "prefixItems" in value:
        return f"list of {len(value['prefixItems'])} {_type(value['prefixItems'][0])}s"
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"name → {_type(inner)}" if isinstance(inner, dict) else "object"
    return str(value.get("type", "any"))


def _in_order(value: Any, definitions: dict[str, Any], met: list[str]) -> list[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    name = value["$ref"].rpartition("/")[2] if isinstance(value, dict) and "$ref" in value else None
    if name and name not in met:
        met.append(name)
        _in_order(definitions[name], definitions, met)
    for one in inner:
        _in_order(one, definitions, met)
    return met


def main() -> None:
    for name, text in (
        ("report.schema.json", json.dumps(schema(), indent=2) + "\n"),
        ("report.md", page()),
    ):
        with publish(DOCS / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(f"wrote {DOCS / name}")


if __name__ == "__main__":
    main()
