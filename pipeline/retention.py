"""Retention: deletes customer text after the export, according to `privacy.retention`.

    apply_retention(run, recipe.privacy.retention)   # deletes files and writes retention.json
    deletion_of(run, run.features)          # "2026-08-01, privacy.retention = delete_features"

Later runs read retention.json to tell deleted outputs from missing ones.
"""

import datetime
import shutil
from pathlib import Path

from pydantic import BaseModel

from outrider.common.files import write_json
from outrider.common.json_forms import read_form
from outrider.eval.config import RESPONSE_STATES
from outrider.pipeline.run_dir import RunDirectory

COUNTS = ("summary.json", "privacy.json", "on_policy.json", "quarantine.json")
"""Files that are kept because they contain no text. Later stages need quarantine.json."""


class _Note(BaseModel):
    """retention.json."""

    deleted: dict[str, str]


def apply_retention(run: RunDirectory, retention: str) -> list[str]:
    """Applies `retention`; returns the deleted paths, relative to the run directory."""
    doomed = [path for path in _held(run, retention) if _text(path)]
    if not doomed:
        return []
    names = [str(path.relative_to(run.root)) for path in doomed]
    earlier = _deleted(run)
    why = f"{datetime.date.today().isoformat()}, privacy.retention = {retention}"
    # Recorded first, so that the next run deletes the rest after an interruption.
    write_json(_note(run), {"deleted": earlier | dict.fromkeys(names, why)})
    for path in doomed:
        for text in _text(path):
            shutil.rmtree(text) if text.is_dir() else text.unlink()
        # Counts in it keep a directory.
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return names


def deletion_of(run: RunDirectory, path: Path) -> str | None:
    """Returns when and why `path` was deleted; None if it was not."""
    if path.exists():
        return None
    deleted = _deleted(run).items()
    return next((why for name, why in deleted if path.is_relative_to(run.root / name)), None)


def _deleted(run: RunDirectory) -> dict[str, str]:
    """Reasons by deleted path, relative to the run directory."""
    if not _note(run).is_file():
        return {}
    fix = f"delete it; {run.root} is then read as if nothing had been deleted from it"
    return read_form(_Note, _note(run), fix).deleted


def _text(path: Path) -> list[Path]:
    """The file, or the directory's entries, except files that contain only counts."""
    if not path.exists():
        return []
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    return [entry for entry in entries if entry.name not in COUNTS]


def _held(run: RunDirectory, retention: str) -> list[Path]:
    if retention == "keep":
        return []
    # An evaluation of several kinds has a folder for each.
    of_kinds = [path.parent for path in sorted(run.evaluation.glob("*/steps"))]
    outs = [run.evaluation, *of_kinds, run.other_evaluation]
    states = [run.features, *(out / RESPONSE_STATES for out in outs)]
    if retention == "delete_features":
        return states
    traffic = sorted(run.traffic.glob("*"))
    # Specifications of trainings contain the grammars of requests.
    specifications = sorted(run.root.glob("**/training/**/spec.json"))
    return [*states, *traffic, *specifications, *(out / "steps" for out in outs)]


def _note(run: RunDirectory) -> Path:
    return run.root / "retention.json"
