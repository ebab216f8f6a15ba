"""Generates docs/report.schema.json and docs/report.md from the models in eval/results/.

python -m outrider.eval.report.schema_reference      # a test fails when they are out of date
"""

import json
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.eval.results.parts import Drafters, Variants
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
    lines = [HEAD, *_keys(whole, definitions)]
    for name in _in_order(whole, definitions, []):
        described = definitions[name]
        if _is_group(name):
            continue  # written where it is used
        lines += ["", f"## {name}", "", " ".join(described["description"].split()), ""]
        lines += _keys(described, definitions)
    return "\n".join(lines) + "\n"


def _keys(described: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in described["properties"].items():
        text = " ".join(value.get("description", "").split())
        lines.append(f"- `{key}` ({_type(value, definitions)}): {text}")
    return lines


def _is_group(name: str) -> bool:
    """Whether an object is one value for each variant, such as `Drafters[Greedy]`."""
    return name.partition("_")[0] in (Drafters.__name__, Variants.__name__) and "_" in name


def _type(value: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if not _is_group(name):
            return f"[{name}](#{name.lower()})"
        variants = definitions[name]["properties"]
        inner = _type(next(iter(variants.values())), definitions)
        return f"{', '.join(f'`{variant}`' for variant in variants)} → {inner}"
    if "anyOf" in value:
        return " or ".join(_type(one, definitions) for one in value["anyOf"])
    if "enum" in value or "const" in value:
        return " or ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    if "prefixItems" in value:
        one = _type(value["prefixItems"][0], definitions)
        return f"list of {len(value['prefixItems'])} {one}s"
    if value.get("type") == "array":
        return f"list of {_type(value['items'], definitions)}"
    if value.get("type") == "object":
        each = value.get("additionalProperties")
        return f"name → {_type(each, definitions)}" if isinstance(each, dict) else "object"
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
