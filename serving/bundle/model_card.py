"""The model card of a bundle on the Hugging Face Hub: metadata, measurements, how to serve it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.serving.serve_flags import read_serve_flags
from outrider.speculators.kinds import kind_named

TAGS = ("speculative-decoding", "speculator", "vllm", "outrider")


def model_card(bundle: Path, repository: str) -> str:
    """README.md: YAML for the hub, then Markdown. `repository`: OWNER/NAME, as vLLM will name it.

    Numbers are from bundle.json's evidence. The card has no text of requests.
    """
    from huggingface_hub import ModelCardData

    manifest = read_json(bundle / "bundle.json")
    target, evidence = manifest["target"], manifest.get("evidence") or {}
    name = hub_id(target["model"])
    data = ModelCardData(
        base_model=name,
        library_name="vllm",
        pipeline_tag="text-generation",
        tags=[*TAGS, manifest["method"].replace("_", "-")],
    )
    served = name or Path(target["model"]).name
    lines = [
        "---",
        data.to_yaml().strip(),
        "---",
        "",
        f"# {repository.partition('/')[2]}",
        "",
        f"A speculator ({kind_named(manifest['method']).in_words}) for `{served}`: it drafts"
        f" {manifest['num_speculative_tokens']} tokens per step, and the target verifies them, so"
        " the target's outputs keep their distribution. It was trained on one endpoint's traffic by"
        " Outrider and is fast on such traffic; on other traffic it may draft worse than the"
        " target's own.",
        "",
        *_measured(evidence),
        *_serving(bundle, manifest, repository, served),
        *_provenance(manifest, evidence),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _measured(evidence: dict[str, Any]) -> Iterator[str]:
    rows = [_row("Tokens per step", evidence.get("acceptance_length"), 3)]
    for mode, speeds in sorted((evidence.get("tokens_per_s") or {}).items()):
        for concurrency, speed in sorted(speeds.items(), key=lambda row: int(row[0])):
            ratio = {
                "base": speed.get("base"),
                "custom": speed.get("custom"),
                "ratio": speed.get("custom_over_base"),
                "ratio_ci95": speed.get("custom_over_base_ci95"),
            }
            rows.append(_row(f"Tokens/s, {mode}, {concurrency} at a time", ratio, 1))
    rows = [row for row in rows if row]
    if not rows:
        return
    yield "## Measured on held-out traffic"
    yield ""
    yield "| | base | this speculator | ratio [95 % CI] |"
    yield "|---|---|---|---|"
    yield from rows
    yield ""
    if drafts := evidence.get("k"):
        base = "none" if drafts.get("base") is None else drafts["base"]
        yield f"Drafted tokens per step: base {base}, this speculator {drafts.get('custom')}."
    if "verdict" in evidence:
        yield f"Verdict of the evaluation: {evidence['verdict']} ({evidence.get('reason')})."
    yield ""


def _row(name: str, values: dict[str, Any] | None, digits: int) -> str:
    if not values or values.get("custom") is None:
        return ""
    base, custom, ratio, interval = (
        values.get(key) for key in ("base", "custom", "ratio", "ratio_ci95")
    )
    between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    compared = "" if ratio is None else f"{ratio:.3f}{between}"
    cells = ["" if value is None else f"{value:.{digits}f}" for value in (base, custom)]
    return f"| {name} | {cells[0]} | {cells[1]} | {compared} |"


def _serving(bundle: Path, manifest: dict[str, Any], repository: str, served: str) -> Iterator[str]:
    flags = read_serve_flags(bundle, repository)
    revision = manifest["target"].get("revision")
    groups: list[Sequence[str]] = [("--revision", revision)] if revision else []
    groups += flags.groups
    yield "## Serve"
    yield ""
    yield f"With the flags of the evaluation (vLLM {manifest['vllm']}):"
    yield ""
    yield "```bash"
    for name, value in sorted(flags.environment.items()):
        yield f"export {name}={shlex.quote(value)}"
    yield f"vllm serve {shlex.quote(served)} \\"
    shown = [" ".join(shlex.quote(word) for word in group) for group in groups]
    for line in shown[:-1]:
        yield f"  {line} \\"
    yield f"  {shown[-1]}"
    yield "```"
    yield ""
    yield "`serve.sh` in this repository is the same command for a downloaded copy."
    yield ""


def _provenance(manifest: dict[str, Any], evidence: dict[str, Any]) -> Iterator[str]:
    yield "## Provenance"
    yield ""
    yield "`bundle.json` has the SHA-256 of every file and the evidence."
    for name, title in (("recipe_sha256", "Recipe"), ("report_sha256", "Report")):
        if evidence.get(name):
            yield f"{title}: SHA-256 `{evidence[name]}`."


def hub_id(model: str) -> str | None:
    """The target's name where it is one of the hub."""
    is_name = model.count("/") == 1 and not model.startswith((".", "/", "~"))
    return model if is_name and not Path(model).is_dir() else None
