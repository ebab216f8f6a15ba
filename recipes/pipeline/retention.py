"""Retention: after the export, `privacy.retention` deletes what was made of the customer's text; a later run says so.

retain(run, recipe.privacy.retention)        # deletes, and notes it in retention.json
deletion_of(run, run.features)               # "2026-08-01, privacy.retention = delete_features", or None
"""

import datetime
import shutil
from pathlib import Path

from outrider.common.files import read_json, write_json
from outrider.recipes.pipeline.run_dir import RunDirectory

COUNTS = ("summary.json", "privacy.json", "on_policy.json", "quarantine.json")
"""What stays of the traffic and of its states: it holds no text. Without the quarantine nobody could say what was measured."""


def retain(run: RunDirectory, retention: str) -> list[str]:
    """Deletes what the recipe says, and returns the paths, relative to the run directory. What is gone already is no matter."""
    doomed = [path for path in _held(run, retention) if _text(path)]
    if not doomed:
        return []
    names = [str(path.relative_to(run.root)) for path in doomed]
    earlier = read_json(_note(run))["deleted"] if _note(run).is_file() else {}
    told = f"{datetime.date.today().isoformat()}, privacy.retention = {retention}"
    # Noted first: whoever is interrupted here is told the same, and the next run deletes the rest.
    write_json(_note(run), {"deleted": earlier | dict.fromkeys(names, told)})
    for path in doomed:
        for text in _text(path):
            shutil.rmtree(text) if text.is_dir() else text.unlink()
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return names


def deletion_of(run: RunDirectory, path: Path) -> str | None:
    """When and by which setting `path` was deleted; None when it stands there, or was not deleted by retention."""
    if path.exists() or not _note(run).is_file():
        return None
    deleted = read_json(_note(run))["deleted"]
    return next(
        (told for name, told in deleted.items() if path.is_relative_to(run.root / name)), None
    )


def _text(path: Path) -> list[Path]:
    """What of a file, or of a directory's entries, is not mere counts."""
    entries = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    return [entry for entry in entries if entry.name not in COUNTS]


def _held(run: RunDirectory, retention: str) -> list[Path]:
    if retention == "keep":
        return []
    states = [
        run.features,
        *(out / "verification_states" for out in (run.evaluation, run.other_evaluation)),
    ]
    if retention == "delete_features":
        return states
    traffic = sorted(run.traffic.glob("*"))
    return [*states, *traffic, run.evaluation / "steps", run.other_evaluation / "steps"]


def _note(run: RunDirectory) -> Path:
    return run.root / "retention.json"
