"""The Hugging Face model card of a bundle: metadata, measurements, serve command."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from outrider.common.inert import inert_markdown
from outrider.common.json_forms import read_object
from outrider.serving.config import hub_id
from outrider.serving.serve_flags import read_serve_flags
from outrider.speculators.kinds import kind_named

_Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
_Concurrency = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

TAGS = ("speculative-decoding", "speculator", "vllm", "outrider")

_CARD = """\
---
{{ metadata }}
---

# {{ name }}

A speculator ({{ kind.in_words }}) for `{{ served }}`: it drafts {{ manifest.num_speculative_tokens }} tokens per step, and the target verifies them, so the target's outputs keep their distribution. {% if trained %}It was trained on one endpoint's traffic by Outrider and is fast on such traffic; on other traffic it may draft worse than the target's own.{% else %}It has no weights: drafts are {{ kind.source_of_drafts }}.{% if history %} `history.npz` has {{ history.responses }} of the {{ history.offered }} responses in its log, the newest ({{ history.tokens }} tokens, {{ number(history.gigabytes, 3) }} GB of each engine process): customer text, to be kept as the log is. {% if history.shared %}Requests of all tenants search it.{% else %}A request searches the responses of the tenant that its `cache_salt` names.{% endif %}{% endif %}{% if kind.serving_note %} {{ kind.serving_note }}{% endif %} On one endpoint's traffic no trained speculator was shown to be faster.{% endif %}


{% if measured -%}
## Measured on held-out traffic

| | base | this speculator | ratio [95 % CI] |
|---|---|---|---|
{% for name, digits, base, custom, ratio, interval in measured -%}
| {{ name }} | {{ number(base, digits) }} | {{ number(custom, digits) }} | {{ number(ratio, 3) }}{% if interval %} [{{ number(interval[0], 3) }}, {{ number(interval[1], 3) }}]{% endif %} |
{% endfor %}
{% if evidence.k -%}
Drafted tokens per step: base {{ "none" if evidence.k.base is none else evidence.k.base }}, this speculator {{ evidence.k.custom }}.
{% endif -%}
{% if evidence.verdict -%}
Verdict of the evaluation: {{ evidence.verdict }} ({{ evidence.reason }}).
{% endif %}
{% endif -%}
## Serve

With the flags of the evaluation (vLLM {{ manifest.vllm }}):

```bash
{% for line in exports -%}
{{ line }}
{% endfor -%}
{{ command }}
```

`serve.sh` in this repository is the same command for a downloaded copy.

## Provenance

`bundle.json` has the SHA-256 of every file and the evidence.
{% if evidence.recipe_sha256 -%}
Recipe: SHA-256 `{{ evidence.recipe_sha256 }}`.
{% endif -%}
{% if evidence.report_sha256 -%}
Report: SHA-256 `{{ evidence.report_sha256 }}`.
{% endif -%}
"""  # noqa: E501


class _Speeds(BaseModel):
    """A comparison at one number of requests at a time."""

    base: float | None = None
    custom: float | None = None
    custom_over_base: float | None = None
    custom_over_base_ci95: _Interval | None = None


class _Length(BaseModel):
    base: float | None = None
    custom: float | None = None
    ratio: float | None = None
    ratio_ci95: _Interval | None = None


class _Drafts(BaseModel):
    base: int | None
    custom: int


class _Evidence(BaseModel):
    k: _Drafts | None = None
    verdict: str | None = None
    reason: str | None = None
    recipe_sha256: str | None = None
    report_sha256: str | None = None
    acceptance_length: _Length | None = None
    tokens_per_s: dict[str, dict[_Concurrency, _Speeds]] | None = None


class _History(BaseModel):
    responses: int
    offered: int
    tokens: int
    gigabytes: float
    shared: bool


class _Described(BaseModel):
    """The keys of bundle.json that the card has; `read_serve_flags` checks those of the command."""

    files: dict[str, str]
    evidence: _Evidence | None = None
    history: _History | None = None


def model_card(bundle: Path, repository: str) -> str:
    """Renders README.md: YAML metadata for the hub, then Markdown.

    `repository` is OWNER/NAME. Numbers are from bundle.json's evidence; request texts are omitted.
    """
    import jinja2
    from huggingface_hub import ModelCardData

    flags = read_serve_flags(bundle, repository)  # checks the target, the kind and the engine
    fix = "export the bundle again"
    manifest: dict[str, Any] = read_object(_Described, bundle / "bundle.json", fix)
    model = manifest["target"]["model"]
    evidence = manifest.get("evidence") or {}
    base_model = hub_id(model)
    served = base_model or Path(model).name
    metadata = ModelCardData(
        base_model=base_model,
        library_name="vllm",
        pipeline_tag="text-generation",
        tags=[*TAGS, manifest["method"].replace("_", "-")],
    )
    groups = [("vllm", "serve", served), *flags.groups]
    if revision := manifest["target"].get("revision"):
        groups.insert(1, ("--revision", revision))
    variables = sorted(flags.environment.items())
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(_CARD)
    front_matter = metadata.to_yaml().strip()
    figures = {name: evidence.get(name) for name in _FROM_EVIDENCE}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables]
    command = " \\\n  ".join(map(shlex.join, groups))
    card = template.render(
        metadata=front_matter,
        name=repository.partition("/")[2],
        kind=kind_named(manifest["method"]),
        served=served,
        history=manifest.get("history"),
        trained="config.json" in manifest["files"],
        manifest=manifest,
        evidence=figures,
        measured=_measured(evidence),
        number=_number,
        exports=exports,
        command=command,
    )
    return inert_markdown(card)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


_FROM_EVIDENCE = ("k", "verdict", "reason", "recipe_sha256", "report_sha256")


def _measured(evidence: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Table rows: name, decimal places, base, custom, their ratio and its interval."""
    length = evidence.get("acceptance_length") or {}
    rows = [("Tokens per step", 3, *map(length.get, ("base", "custom", "ratio", "ratio_ci95")))]
    columns = ("base", "custom", "custom_over_base", "custom_over_base_ci95")
    for mode, speeds in sorted((evidence.get("tokens_per_s") or {}).items()):
        for concurrency in sorted(speeds, key=int):
            name = f"Tokens/s, {mode}, {concurrency} at a time"
            rows.append((name, 1, *map(speeds[concurrency].get, columns)))
    return [row for row in rows if row[3] is not None]
