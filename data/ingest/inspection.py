"""Inspection of a log: the summary, checks and split of an ingest, without a run.

Readers, sequences and checks are those of the ingest, so the result is what a run would give. It
holds no customer text.

    inspect(target_dir, TrafficConfig(path="logs/"), SplitConfig(), scratch)["rejects"]
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.config import PrivacyConfig, SplitConfig, TrafficConfig
from outrider.data.ingest.advice import advise
from outrider.data.ingest.ingest import check, put_together, read_log
from outrider.data.sequences import load_sequences
from outrider.data.split.near_duplicates import SimilarPrompts
from outrider.data.split.split import PARTS, describe, divide

NEAR_COMPARED = 2000
"""Prompts, evenly spaced, among which near-identical ones are counted: some seconds."""

SPLIT_COMPARED = 20_000
"""Sequences above which the predicted split does not compare prompts: that would take minutes and
400 MB."""


def inspect(
    target_dir: Path,
    traffic: TrafficConfig,
    split: SplitConfig,
    scratch: Path,
    rows_per_file: int | None = None,
    privacy: PrivacyConfig | None = None,
) -> dict[str, Any]:
    """Ingests the log into `scratch` and describes it; `problems` would stop a run."""
    read = read_log(target_dir, traffic, scratch, rows_per_file=rows_per_file, privacy=privacy)
    problems = []
    try:
        check(read.tally, traffic, read.files)
    except OutriderError as error:
        if not read.tally.rows:
            raise
        problems.append(str(error))
    put_together(read, target_dir, scratch)
    found = inspect_ingested(scratch, split)
    # Too few sessions for a split are expected where only the beginning of the log was read.
    return found | {"problems": problems if rows_per_file else problems + found["problems"]}


def inspect_ingested(traffic_dir: Path, split: SplitConfig) -> dict[str, Any]:
    """Describes a log that was already ingested."""
    traffic_dir = Path(traffic_dir)
    summary = read_json(traffic_dir / "summary.json")
    predicted: dict[str, Any] | None = None
    near: dict[str, Any] | None = None
    problems = []
    if summary["exchanges"]:
        table = load_sequences(traffic_dir / "sequences")
        near = _near_identical(table, split.near_duplicate_similarity)
        try:
            predicted = _split(table, split)
        except OutriderError as error:
            problems.append(str(error))
    return {
        **summary,
        "files": len(summary["files"]),
        "reject_examples": _examples(traffic_dir / "rejects.jsonl"),
        "duplicates": {**summary["duplicates"], "near": near},
        "split": predicted,
        "problems": problems,
        "advice": advise(summary, predicted, split),
    }


def _examples(rejects: Path) -> dict[str, dict[str, str]]:
    """The first reject of each reason: its place and detail."""
    examples: dict[str, dict[str, str]] = {}
    with rejects.open(encoding="utf-8") as lines:
        for line in lines:
            reject = json.loads(line)
            place = f"{reject['file']}:{reject['line']}"
            examples.setdefault(reject["reason"], {"place": place, "detail": reject["detail"]})
    return examples


def _near_identical(table: Dataset, similarity: float) -> dict[str, Any]:
    """Counts the distinct prompts that are similar to an earlier one."""
    rows = np.linspace(0, len(table) - 1, min(NEAR_COMPARED, len(table)), dtype=int)
    prompts = list(dict.fromkeys(table.select(rows)["prompt_text"]))
    seen = SimilarPrompts([], similarity, prompts)
    near = sum(not seen.add_new(prompt) for prompt in prompts)
    return {"compared": len(prompts), "near_identical": near, "similarity": similarity}


def _split(table: Dataset, split: SplitConfig) -> dict[str, Any]:
    compared = len(table) <= SPLIT_COMPARED
    described = describe(table, divide(table, split, drop_seen=compared))
    return {
        **described,
        "tokens": sum(described[part]["tokens"] for part in PARTS),
        "prompts_compared": compared,
    }
