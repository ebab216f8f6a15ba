"""Generates docs/reference from docstrings.

Keys of recipes, endpoints and reports, commands, the Python functions, log formats, metrics, and
report.json's schema.

python -m tools.reference      # `make reference`; a test fails if a page is out of date
"""

import ast
import inspect
import itertools
import json
import re
import textwrap
import types
import typing
from pathlib import Path

from annotated_types import Ge, Gt, Le, Lt
from prometheus_client.core import CounterMetricFamily
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import outrider
from outrider.adapt import metrics as adapt_metrics
from outrider.adapt.state import AdaptState
from outrider.cli.main import command_app
from outrider.data.exchange import Reject
from outrider.data.formats import FORMATS
from outrider.data.formats.calls import openai, sampling
from outrider.eval.results.report import Report
from outrider.live import metrics as live_metrics
from outrider.live.endpoint_file import SHIPPED_ENDPOINTS, Endpoint
from outrider.live.state import DeploymentVerdict, State
from outrider.pipeline.recipe.recipe import EFFORTS, Recipe
from outrider.pipeline.recipe.shipped import shipped_recipes

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference"

HEAD = """# Basic keys of a recipe

<!-- Written by `make reference` from the docstrings of the configuration; change those. -->

A recipe is a YAML file. Omitted keys have the defaults below; unknown keys are errors. `extends:`
names another recipe by a path relative to this one or by a shipped name: sections are merged key by
key; lists and values are replaced. Any key can be set on the command line with a YAML value, such
as `training.epochs=3`. `--dry-run` writes the recipe with every key filled in to
`runs/NAME/recipe.resolved.yaml`.

Relative paths are relative to the recipe that contains them, else to the current directory.

Shipped recipes: {shipped}.

Most runs set only these keys, listed in the order in which you need them. [All other
keys](all-keys.md) have defaults that suit most endpoints.

{keys}
"""

OTHERS_HEAD = """# All other keys of a recipe

<!-- Written by `make reference` from the docstrings of the configuration; change those. -->

These keys have defaults that suit most endpoints. See [basic keys](basic-keys.md) for the others.
"""

BASIC = (
    "target.model",
    "traffic.path",
    "name",
    "effort",
    "traffic.model",
    "traffic.general",
    "privacy.mode",
    "privacy.retention",
    "speculator.kind",
    "speculator.base",
    "speculator.depth",
    "speculator.train",
    "serving.engine.tensor_parallel",
    "serving.engine.max_model_len",
    "serving.engine.max_num_seqs",
    "serving.engine.mode",
    "training.processes",
    "training.zero_stage",
    "training.row_tokens",
    "training.rows_per_step",
    "training.learning_rate",
    "training.epochs",
    "training.trackers",
    "training.tracking_project",
    "split.max_train_sequences",
    "split.max_validation_sequences",
    "split.max_heldout_sequences",
    "eval.current_k",
    "eval.engine_modes",
    "eval.concurrency",
    "eval.max_tokens",
    "eval.verification_max_tokens",
    "eval.task",
    "eval.measure",
    "eval.repeats",
    "cluster.address",
)
"""Keys that most runs set, in the order in which users need them."""

ENDPOINT_HEAD = """# Endpoint file

<!-- Written by `make reference` from the docstrings of the configuration; change those. -->

`outrider deploy --endpoint FILE` reads a YAML file like this one:

```yaml
EXAMPLE```

Omitted keys have the defaults below; unknown keys are errors. Relative paths are relative to the
file's folder, except sockets, which are relative to `state_dir`. The file above comes with the
package: `--endpoint nano_r1`.
"""

COMMANDS_HEAD = """# Commands

<!-- Written by `make reference` from the docstrings of cli/; change those. -->

RECIPE is a YAML file, the name of a shipped recipe, or a run directory, which contains its resolved
recipe. Every verb takes `--help` and `--quiet` (only errors on stderr);
`outrider --install-completion` adds shell completion. Three verbs have aliases: `train-speculator`,
`evaluate-speculator` and `export-speculator`. Human-readable output goes to stderr. The last line
of stdout of train, eval, export, deploy and adapt is one JSON object; a dry run prints none to a
terminal.

## Exit status

| status | meaning |
|---|---|
| 0 | ships, promoted, or done |
| 1 | error; the message names what failed, the value and the fix |
| 2 | wrong command line |
| 3 | `do not ship`: measured, not exported (`--force` exports it); or rolled back |
| 4 | `undecided`: measured, not exported |
| 75, 130 | stopped by a signal or at its window's end, or by Ctrl-C; rerun the command to resume |

"""

PYTHON_HEAD = """# Python

<!-- Written by `make reference` from the docstrings of outrider/__init__.py; change those. -->

{introduction}

A `Name` is `str | Path`. `outrider.OutriderError` is the class of all errors that a user can fix,
`outrider.__version__` the version. `examples/quickstart.ipynb` makes these calls.
"""

REPORT_HEAD = """# Keys of report.json

<!-- Written by `make reference` from the docstrings of eval/results; change those. -->

JSON Schema: [report.schema.json](report.schema.json). An estimate has `value`, `low` and `high`
(95 %), `observations` and `clusters`.
"""

FORMATS_HEAD = """# Log formats and rejects

<!-- Written by `make reference` from the docstrings of data/formats; change those. -->

Values of `traffic.format`, in the order in which they are tried. Most wrap the OpenAI fields, which
a section below lists.
"""

METRICS_HEAD = """# Metrics

<!-- Written by `make reference` from live/metrics.py and adapt/metrics.py; change those. -->

`outrider deploy` writes `state_dir/metrics.prom`, and `outrider adapt` writes
`state_dir/adapt.prom`, for node_exporter's textfile collector, which reads all `.prom` files of a
folder. Most metrics count entries of the endpoint's journal; vLLM exports request metrics.
`live/grafana/live_endpoint.json` is a dashboard. Every metric also has the label `endpoint`.

| metric | labels | meaning | file |
|---|---|---|---|
"""

Section = type[BaseModel]


def basic_keys() -> str:
    """The page of the keys in `BASIC`."""
    shipped = ", ".join(f"`{name}`" for name in shipped_recipes())
    lines = {line.split("`")[1]: line for line in _recipe_keys() if line.startswith("- `")}
    return HEAD.format(shipped=shipped, keys="\n".join(lines[key] for key in BASIC))


def other_keys() -> str:
    """The page of all other keys, by section."""
    prefixes = tuple(f"- `{key}` " for key in BASIC)
    return "\n".join(
        [OTHERS_HEAD, *(line for line in _recipe_keys() if not line.startswith(prefixes))]
    )


def _recipe_keys() -> list[str]:
    lines: list[str] = []
    _write_section("", Recipe, lines)
    return lines


def endpoint_reference() -> str:
    """The page of the endpoint file."""
    example = (SHIPPED_ENDPOINTS / "nano_r1.yaml").read_text(encoding="utf-8")
    parts = [ENDPOINT_HEAD.replace("EXAMPLE", example)]
    _write_section("", Endpoint, parts)
    return "\n".join(parts)


def report_schema() -> str:
    """JSON Schema of report.json, draft 2020-12."""
    schema = Report.model_json_schema(mode="serialization")
    draft = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps({"$schema": draft, **schema}, indent=2) + "\n"


def commands() -> str:
    """The page of the command line."""
    pages = command_app().generate_docs(output_format="markdown")
    # cyclopts adds the name of the running module.
    pages = re.sub(r"^(outrider \w+) -m [\w.]+", r"\1", pages, flags=re.MULTILINE)
    return COMMANDS_HEAD + pages[pages.index("## outrider doctor") : pages.index("## outrider --")]


def python_functions() -> str:
    """The page of `import outrider`."""
    parts = [PYTHON_HEAD.format(introduction=inspect.getdoc(outrider))]
    for name in outrider.__all__:
        function = getattr(outrider, name)
        if inspect.isfunction(function):
            signature = inspect.getsource(function).partition('    """')[0].strip()
            parts.append(
                f"## {name}\n\n```python\n{signature}\n```\n\n{inspect.getdoc(function)}\n"
            )
    rows = [f"## Run\n\n{inspect.getdoc(outrider.Run)}\n", "| method | |\n|---|---|"]
    for name, method in inspect.getmembers(outrider.Run, inspect.isfunction):
        if not name.startswith("_"):
            parameters = [word for word in inspect.signature(method).parameters if word != "self"]
            summary = str(inspect.getdoc(method)).partition("\n")[0]
            rows.append(f"| `{name}({', '.join(parameters)})` | {summary} |")
    return "\n".join([*parts, *rows, ""])


def report_keys() -> str:
    """The page of report.json's keys, with a section per model."""
    schema = Report.model_json_schema(mode="serialization")
    lines = [REPORT_HEAD]
    for name, model in {"Report": schema, **schema["$defs"]}.items():
        if "properties" in model:
            lines.append(f"## {name}\n\n{model.get('description', '')}\n")
            lines += [_report_key(*item) for item in model["properties"].items()]
            lines.append("")
    return "\n".join(lines)


def _report_key(name: str, value: typing.Any) -> str:
    parts = dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value)))
    links = ", ".join(f"[{part}](#{part.lower()})" for part in parts)
    return f"- `{name}`" + f" ({links})" * bool(links) + ": " + value.get("description", name)


def log_formats() -> str:
    """The page of log formats and reject reasons."""
    shared = {"OpenAI fields": openai, "Sampling": sampling, "Rejects": Reject}
    sections = {**{f"`{name}`": module for name, module in FORMATS.items()}, **shared}
    pages = (f"## {name}\n\n{inspect.getdoc(source)}\n" for name, source in sections.items())
    return "\n".join([FORMATS_HEAD, *pages])


def metrics() -> str:
    """The page of the live endpoint's metrics."""
    files = {
        live_metrics.METRICS: live_metrics.deployment_measures(
            State(), DeploymentVerdict("wait", "")
        ),
        adapt_metrics.METRICS: adapt_metrics.adaptation_measures(AdaptState()),
    }
    rows = [_metric(measure, file) for file, measures in files.items() for measure in measures]
    return METRICS_HEAD + "".join(rows)


def _metric(measure: live_metrics.Measure, file: str) -> str:
    suffix = "_total" if measure.kind is CounterMetricFamily else ""
    labels = ", ".join(f"`{label}`" for label in measure.labels)
    return f"| `outrider_{measure.name}{suffix}` | {labels} | {measure.text} | `{file}` |\n"


PAGES = {
    "commands.md": commands,
    "python.md": python_functions,
    "basic-keys.md": basic_keys,
    "all-keys.md": other_keys,
    "endpoint.md": endpoint_reference,
    "report.md": report_keys,
    "log-formats.md": log_formats,
    "metrics.md": metrics,
    "report.schema.json": report_schema,
}
"""Files in docs/reference and the functions that generate them."""


def _write_section(prefix: str, section: Section, parts: list[str]) -> None:
    if prefix:
        parts.append(f"## `{prefix}`\n")
        parts.append(f"{inspect.cleandoc(section.__doc__ or '')}\n")
    docs = field_docs(section)
    fields = section.model_fields
    inner = {name: _section_of(field.annotation) for name, field in fields.items()}
    by_name = {name: _section_in(field.annotation, dict, 1) for name, field in fields.items()}
    listed = {name: _section_in(field.annotation, list, 0) for name, field in fields.items()}
    plain = [
        name
        for name, field in fields.items()
        if listed[name] is None and (inner[name] is None or inner[name] is not field.annotation)
    ]
    for name in plain:
        key = f"{prefix}.{name}" if prefix else name
        text = " ".join(docs[name].split())
        default = _by_effort(key) or _default(fields[name])
        parts.append(f"- `{key}` ({_type(fields[name])}, {default}): {text}")
    if plain:
        parts.append("")
    for name, child in inner.items():
        if child:
            _write_section(f"{prefix}.{name}" if prefix else name, child, parts)
    for name, child in by_name.items():
        if child:
            _write_section(f"{prefix}.{name}.NAME", child, parts)
    for name, child in listed.items():
        if child:
            _write_section(f"{prefix}.{name}[]" if prefix else f"{name}[]", child, parts)


def field_docs(section: Section) -> dict[str, str]:
    """The docstring under each field of a model, read from its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in itertools.pairwise(definition.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[field.target.id] = str(text.value.value)
    missing = [f"{section.__name__}.{name}" for name in section.model_fields if name not in docs]
    if missing:
        raise SystemExit(f"no docstring under {', '.join(missing)}")
    return docs


def _section_of(annotation: typing.Any) -> Section | None:
    """The section type of a field, which may be optional."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(filter(None, map(_section_of, typing.get_args(annotation))), None)
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section else None


def _section_in(annotation: typing.Any, container: type, argument: int) -> Section | None:
    """Section type of dict values (eval.scenarios) or list items (replicas)."""
    if typing.get_origin(annotation) is not container:
        return None
    return _section_of(typing.get_args(annotation)[argument])


def _type(field: FieldInfo) -> str:
    return " ".join([_type_name(field.annotation), *_limits(field.metadata)])


def _limits(metadata: typing.Iterable[typing.Any]) -> list[str]:
    signs = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}
    return [
        f"{signs[type(limit)][0]} {getattr(limit, signs[type(limit)][1])}"
        for limit in metadata
        if type(limit) in signs
    ]


def _type_name(annotation: typing.Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return " ".join([_type_name(arguments[0]), *_limits(arguments[1:])])
    if origin is typing.Literal:
        return " or ".join(f"`{a}`" for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(a) for a in arguments)
    if origin is tuple and arguments[-1] is ...:
        return f"list of {_type_name(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(_type_name(a) for a in arguments)}]"
    if _section_of(annotation):
        return "section"
    if origin in (list, dict):
        return f"{origin.__name__} of {' to '.join(_type_name(a) for a in arguments)}"
    names = {"NoneType": "null", "str": "text", "bool": "`true` or `false`", "Path": "path"}
    return names.get(annotation.__name__, annotation.__name__)


def _by_effort(key: str) -> str | None:
    """The key's value for each `effort`, if `effort` sets it."""
    section, _, name = key.partition(".")
    values = [effort.get(section, {}).get(name) for effort in EFFORTS.values()]
    return f"by `effort`: `{'`, `'.join(map(str, values))}`" if values[0] is not None else None


def _default(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default"])
    default = field.get_default(call_default_factory=True, validated_data={"name": "NAME"})
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "`null`" if default is None else f"`{default}`".replace("'", "")


def main() -> None:
    """Writes the pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote {DOCS / name}")


if __name__ == "__main__":
    main()
