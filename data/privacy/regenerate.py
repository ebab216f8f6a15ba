"""Regenerated responses: the target's new responses where logged ones held personal data.

With `privacy.regenerate` the ingest replaces personal data in prompt and response by surrogates and
marks the sequence, whose response is then off-policy. Before capture the target responds to these
prompts again, with the logged sampling settings and at most as many tokens as were logged, so that
it fits. From then on this is the sequence: the engine's ids, fidelity exact.

Responses are appended to `regenerated.jsonl` in the feature store (ids without text, readable by
its owner only). An interrupted run generates none of them twice, and its states belong to the
stored responses.

    answers = regenerate(engine, rows, features_dir, source, batch_tokens=65536)
    answers                  # {sequence id: completion ids}
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from outrider.common.files import publish
from outrider.data.tokenize.tokens import REGENERATE

if TYPE_CHECKING:
    from datasets import Dataset

    from outrider.serving.engine import AskedRow, Engine

FILE = "regenerated.jsonl"


def asked_rows(table: "Dataset") -> "list[AskedRow]":
    """The marked rows of a table of sequences, as requests to the engine."""
    from outrider.serving.engine import AskedRow

    marked = [index for index, fidelity in enumerate(table["fidelity"]) if fidelity == REGENERATE]
    columns = ["sequence_id", "token_ids", "completion_start", "temperature", "top_p"]
    return [
        AskedRow(
            row["sequence_id"],
            row["token_ids"][: row["completion_start"]],
            round(row["temperature"], 4),  # the table holds float32
            round(row["top_p"], 4),
            len(row["token_ids"]) - row["completion_start"],
        )
        for row in table.select(marked).select_columns(columns)
    ]


def regenerate(
    engine: "Engine",
    rows: "Sequence[AskedRow]",
    out_dir: Path,
    source: dict[str, Any],
    batch_tokens: int,
) -> dict[str, np.ndarray]:
    """Returns the target's response [T] int32 to each row, by id.

    Responses to the same `source` are read from `out_dir`; missing ones are generated.
    `batch_tokens`: tokens of prompts and responses generated at a time; an interrupt loses one
    batch.
    """
    path = Path(out_dir) / FILE
    answers = _kept(path, source)
    missing = [row for row in rows if row.row_id not in answers]
    if not missing:
        return answers
    console = Console(stderr=True)
    if not answers:
        _begin(path, source)
    with path.open("a", encoding="utf-8") as file:
        for batch in _batches(missing, batch_tokens):
            for row, token_ids in zip(batch, engine.answer(batch), strict=True):
                answers[row.row_id] = np.asarray(token_ids, np.int32)
                file.write(json.dumps({"id": row.row_id, "token_ids": token_ids}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            console.print(
                f"answered anew by the target: {len(answers):,} of {len(rows):,} responses",
                highlight=False,
            )
    return answers


def _kept(path: Path, source: dict[str, Any]) -> dict[str, np.ndarray]:
    """Responses of an earlier run of the same source; removes a last line that was cut off."""
    if not path.exists():
        return {}
    whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    if not lines or lines[0] != source:
        return {}
    if torn:
        os.truncate(path, len(whole.encode()) + 1)
    return {line["id"]: np.asarray(line["token_ids"], np.int32) for line in lines[1:]}


def _begin(path: Path, source: dict[str, Any]) -> None:
    with publish(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(source) + "\n", encoding="utf-8")


def _batches(rows: "Iterable[AskedRow]", batch_tokens: int) -> "Iterator[list[AskedRow]]":
    batch: list[AskedRow] = []
    tokens = 0
    for row in rows:
        batch.append(row)
        tokens += len(row.token_ids) + row.max_tokens
        if tokens >= batch_tokens:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
