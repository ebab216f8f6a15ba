"""What the report takes from the run's other stages: traffic, privacy, on-policy check, training.

report = load(run_dir, results)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.common.lost_ends import LostEnds
from outrider.data.on_policy.check import FILE as ON_POLICY
from outrider.eval.results.report import Privacy, Report, Results

CAPTURED = "summary.json"
"""The capture's summary in features/; its module imports torch."""

PROVENANCE = ("command_line", "started", "git", "hardware", "python", "versions")
"""Keys of provenance.json that the page shows; report.json has all of them."""

Metrics = Sequence[Mapping[str, Any]]
"""Lines of the training's metrics.jsonl."""


def load(run_dir: Path, results: Results, trained_dir: Path | None = None) -> Report:
    """The results with what the run's other stages left; absent files give null sections."""
    privacy = _read(run_dir / "traffic" / "privacy.json")
    return Report(
        **dict(results) | {"lost_ends": (*lost_ends(run_dir, trained_dir), *results.lost_ends)},
        traffic=traffic_summary(run_dir),
        privacy=Privacy.model_validate(privacy) if privacy else None,
        on_policy=_read(run_dir / "features" / ON_POLICY),
        provenance=_read(run_dir / "provenance.json") or {},
    )


def lost_ends(run_dir: Path, trained_dir: Path | None) -> list[str]:
    """What capture and training have cut, in words."""
    captured = (_read(run_dir / "features" / CAPTURED) or {}).get("too_long")
    trained = _read((trained_dir or run_dir) / "training" / "result.json") or {}
    found = [captured, trained.get("lost_ends")]
    return [text for each in found if each and (text := LostEnds(**each).describe())]


def traffic_summary(run_dir: Path) -> dict[str, Any] | None:
    """The ingest's summary; None where there is none, or one without lengths."""
    summary = _read(run_dir / "traffic" / "summary.json")
    return summary if summary and "lengths" in summary else None


def training_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The training's metrics.jsonl: the run's, or that of the last attempt that trained."""
    attempts = sorted(run_dir.glob("logs/attempt_*/metrics.jsonl"), key=_attempt, reverse=True)
    for path in (run_dir / "metrics.jsonl", *attempts):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
    return []


def export_note(metrics: Metrics) -> str:
    """Acceptance of the published weights next to the trained ones; FP8 blocks, for one, round."""
    exported = [
        line["exported_acceptance_length"][-1]
        for line in metrics
        if "exported_acceptance_length" in line
    ]
    if not exported:
        return ""
    trained = max(
        line["validation_acceptance_length"][-1]
        for line in metrics
        if "validation_acceptance_length" in line
    )
    return (
        f" Published, in the target's own precision: {exported[-1]:.3f}, "
        f"{exported[-1] / trained - 1:+.2%} from the best above, {trained:.3f}."
    )


def privacy_line(privacy: Privacy) -> str:
    """What was done about personal data, in one or two sentences."""
    text = f"Personal data: {privacy.with_any:,} of {privacy.exchanges:,} exchanges contain some. "
    if privacy.mode == "report":
        return text + "Nothing was changed."
    text += (
        f"Surrogates replace it in {privacy.replaced:,} prompts; "
        f"{sum(privacy.left_out.values()):,} exchanges were left out, most because their response "
        "contains some."
    )
    if privacy.to_regenerate:
        text += (
            f" The target wrote {privacy.to_regenerate:,} responses again, because the logged ones "
            "contained some."
        )
    return text


def provenance_lines(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The page's part of the provenance, name -> text."""
    lines = {}
    for name in PROVENANCE:
        value = provenance.get(name)
        if isinstance(value, Mapping):
            items = (f"{key} {item}" for key, item in value.items() if item not in (None, [], ""))
            lines[name.replace("_", " ")] = ", ".join(items)
        elif value:
            text = value if isinstance(value, str) else " ".join(map(str, value))
            lines[name.replace("_", " ")] = text
    return lines


def _attempt(metrics: Path) -> int:
    return int(metrics.parent.name.split("_")[-1])


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    value: dict[str, Any] = read_json(path)
    return value
