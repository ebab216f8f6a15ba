"""Quarantine: off-policy sequences that training, replay and evaluation leave out.

Their states stay in the feature store and their rows in the table. quarantine.json in the store
lists them with their scores. Every stage after capture reads its parts with `load_parts`, the only
place that removes them. The file also names the manifest that was judged, so that its digest covers
both.

    write_quarantine(features, {"0-17": 0.41}, below=0.95)
    parts = load_parts(run / "split", features)          # train, validation, heldout; maybe general
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import file_digest
from outrider.data.features.feature_store import MANIFEST
from outrider.data.split.general_traffic import GENERAL
from outrider.data.split.split import PARTS

FILE = "quarantine.json"


def write_quarantine(
    features_dir: Path, scores: Mapping[str, float], not_captured: Sequence[str] = ()
) -> None:
    """Publishes the quarantined ids with their scores, readable by their owner only.

    `not_captured` were too long for the engine (capture.too_long).
    """
    listed = {sequence_id: round(score, 4) for sequence_id, score in scores.items()}
    manifest = file_digest(Path(features_dir) / MANIFEST)
    content: dict[str, Any] = {"manifest_sha256": manifest, "sequences": listed}
    if not_captured:
        content["not_captured"] = list(not_captured)
    write_json(Path(features_dir) / FILE, content, private=True)


def load_parts(split_dir: Path, features_dir: Path, masked: bool = False) -> dict[str, Any]:
    """Reads parts.json without sequences that are quarantined or were not captured.

    `masked`: the training part keeps those that are quarantined (`training.off_policy: mask`), and
    `masked` lists them.

    Raises:
        OutriderError: a part becomes empty.
    """
    parts = read_json(Path(split_dir) / "parts.json")
    quarantine = read_json(Path(features_dir) / FILE)
    missing = set(quarantine.get("not_captured", ()))
    off = set(quarantine["sequences"])
    if masked:
        parts["masked"] = [sequence_id for sequence_id in parts["train"] if sequence_id in off]
    for name in (name for name in (*PARTS, GENERAL) if name in parts):
        aside = missing if masked and name == "train" else missing | off
        kept = [sequence_id for sequence_id in parts[name] if sequence_id not in aside]
        if not kept:
            raise OutriderError(
                f"{Path(features_dir) / FILE}: all {len(parts[name])} sequences of the {name} part "
                "are quarantined as off-policy or too long; on_policy.json in the same folder has "
                "the causes. Correct the log, lower capture.min_on_policy (null: keep all), or "
                "raise serving.engine.max_model_len"
            )
        parts[name] = kept
    return parts
