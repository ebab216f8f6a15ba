"""A document-extraction log, with `response_format` in each request, as a run reads it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.ingest import INGEST, SPLIT
from tests.cli.commands import run
from tests.data.logs import write_log
from tests.shipped_traffic import logged_rows

RECEIPT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("company", "address", "date", "total")},
    "required": ["company", "total"],
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "receipt", "schema": RECEIPT}}


def extraction_rows(count: int) -> Iterator[dict[str, Any]]:
    """The shipped log's first rows, with token ids or as text, each with a schema."""
    for number, row in zip(range(count), logged_rows("document_extraction"), strict=False):
        row["request"]["response_format"] = RESPONSE_FORMAT
        row["session_id"] = f"s{number // 2}"
        yield row


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.jsonl", extraction_rows(60))


def recipe_of(log: Path, *overrides: str) -> Recipe:
    return load_recipe("document_extraction.yaml", [f"traffic.path={log}", *overrides]).recipe


def test_a_log_with_response_format_in_each_row_gives_a_training_set(
    log: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(log)
    directory = RunDirectory(tmp_path / "run")
    ingested = INGEST.work(directory, recipe, {})
    assert ingested["exchanges"] == 60 and ingested["constraints"] == {"grammar": 60}
    assert ingested["grammars"] == 60
    parts = SPLIT.work(directory, recipe, {})
    assert min(parts[name]["sequences"] for name in ("train", "validation", "heldout")) >= 4


def test_probabilistic_drafts_set_them_aside_with_the_reason(log: Path, tmp_path: Path) -> None:
    recipe = recipe_of(log, "speculator.draft_sample_method=probabilistic")
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(OutriderError, match=r"60 of 60 rows rejected \(grammar 60\)"):
        INGEST.work(directory, recipe, {})
    assert INGEST.settings(recipe) != INGEST.settings(recipe_of(log))


def conforming_rows(target: Path, count: int) -> Iterator[dict[str, Any]]:
    """Rows with token ids; every second response follows its schema from the first token on."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    for number, row in enumerate(extraction_rows(600)):
        (choice,) = row["response"]["choices"]
        if not choice.get("token_ids") or count == 0:
            continue
        if number % 2:
            text = json.dumps({"company": f"SHOP {number}", "total": "12.30"})
            encoded = tokenizer.encode(text, add_special_tokens=False)
            choice["token_ids"] = [*encoded, tokenizer.eos_token_id]
            row["response"].pop("usage", None)
        count -= 1
        yield row


@pytest.mark.slow
@pytest.mark.engine
def test_they_are_captured_and_trained_on(nano_r1: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", conforming_rows(nano_r1, 60))
    words = ("--recipe", "document_extraction.yaml", "--stages", "ingest,split,capture,train")
    settings = (
        f"traffic.path={log}",
        "name=extraction",
        "split.max_train_sequences=8",
        "split.max_validation_sequences=4",
        "split.max_heldout_sequences=4",
        "capture.min_on_policy=null",  # nano R1 has not written the texts that follow the schema
        "speculator.depth=2",
        "training.epochs=1",
        "training.processes=1",
    )
    finished = run("train-speculator", *words, *settings, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    directory = tmp_path / "runs" / "extraction"
    report = json.loads((directory / "features" / "on_policy.json").read_text())["all"]
    assert report["masked"] + report["unusable_grammars"] == 16
    assert report["masked"] > 0 and report["unusable_grammars"] == report["not_checked"] > 0
    metrics = (directory / "metrics.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, metrics) if "loss" in line]
    assert losses and all(0 < loss < 20 for loss in losses)
