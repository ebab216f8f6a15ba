"""Generates docs/report.schema.json and docs/report.md from the models in eval/results/.

python -m outrider.eval.report.schema_reference      # a test fails when they are out of date
"""

import json
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.eval.results import parts
from outrider.eval.results.report import Report

DOCS = Path(__file__).resolve().parents[2] / "docs"

HEAD = """# report.json

<!-- Generated from the models in eval/results/ by
`python -m outrider.eval.report.schema_reference`. -->

The keys of `runs/NAME/report.json`. The same as JSON Schema is in
[report.schema.json](report.schema.json). [evaluation.md](evaluation.md) explains each figure.
Shares are between 0 and 1; keys name the unit of times.
"""


def schema() -> dict[str, Any]:
    """JSON Schema of report.json, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(mode="serialization"),
    }


def page() -> str:
    """The keys as Markdown: `Report` first, then each object in order of first use."""
    definitions = (whole := schema()).pop("$defs")
    lines = [HEAD, *_table("report.json", whole)]
    for name in _in_order(whole, definitions, []):
        # The docstring of a generic model is not part of its parametrized models.
        described = definitions[name].get("description")
        text = described or getattr(parts, name.partition("_")[0]).__doc__
        lines += ["", f"## {_title(name)}", "", " ".join(text.split()), ""]
        lines += _table(name, definitions[name])
    return "\n".join(lines) + "\n"


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
    """Names of the objects below `value` in order of first use, appended to `met`."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
        if "$ref" in value:
            name = value["$ref"].rpartition("/")[2]
            if name not in met:
                met.append(name)
                _in_order(definitions[name], definitions, met)
    elif isinstance(value, list):
        inner = value
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
