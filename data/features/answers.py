"""Has the target answer logged prompts before their states are captured.

There are two reasons to ask again:

- With `privacy.regenerate` the ingest replaces personal data in prompt and response with surrogates
  and marks the sequence, whose response is then off-policy. The target's new response, of at most
  as many tokens as were logged, replaces the logged one (`regenerated_rows`).
- With `capture.answers_up_to` a small log gets further answers to its training prompts
  (`further_rows`). The id of an answer is that of the logged sequence with a number: `0-17+1`.

Both are sampled with the logged settings, and their ids come from the engine. After each batch, a
file in the feature store is updated with the responses (ids without text, readable only by its
owner). So a resumed run repeats no finished batch, and the states that it captures belong to the
stored responses.

    rows = further_rows(
        table, parts["train"], up_to=1000, limit=4095, end_ids={1}, compiles=masks.compiles
    )
    answers = stored_answers(engine.answer, rows, out_dir / FURTHER, source, batch_tokens=65536)
    answers                  # {sequence id: completion ids}
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from pydantic import BaseModel
from rich.console import Console

from outrider.common.files import write_json
from outrider.common.fingerprint import value_digest
from outrider.common.json_forms import Count, read_form
from outrider.data.config import MOST_FURTHER, further_answers
from outrider.data.tokenize.tokens import REGENERATE
from outrider.serving.engine import AskedRow, batches_by_tokens

REGENERATED = "regenerated.json"
FURTHER = "further_answers.json"

LEAST_TEMPERATURE = 1e-3
LEAST_TOP_P = 1e-4
"""Below them, answers hardly differ. The table's float32 values are rounded to four digits, and
vLLM refuses a top_p of 0."""

REQUEST = [
    *("sequence_id", "token_ids", "completion_start"),
    *("temperature", "top_p", "top_k", "grammar"),
]
"""Columns from which a request is made."""

SEPARATOR = "+"
"""Between a logged sequence's id and the number of a further answer."""

Answer = Callable[[Sequence[AskedRow]], list[list[int]]]
"""`Engine.answer` of one or several engines."""

Answers = dict[str, NDArray[np.int32]]
"""Completion ids [T] by sequence id."""


def regenerated_rows(table: Dataset) -> list[AskedRow]:
    """Returns the rows whose response is to be replaced, as engine requests."""
    marked = [index for index, fidelity in enumerate(table["fidelity"]) if fidelity == REGENERATE]
    return [
        _asked(row, row["sequence_id"], len(row["token_ids"]) - row["completion_start"])
        for row in table.select(marked).select_columns(REQUEST)
    ]


def further_rows(
    table: Dataset,
    train: Sequence[str],
    *,
    up_to: int,
    limit: int,
    end_ids: Collection[int],
    compiles: Callable[[str], bool],
) -> list[AskedRow]:
    """Returns the requests that bring the training part as near as possible to `up_to` responses.

    `train` are the ids of the customer's training part, `limit` is the number of tokens after which
    a row is cut. Every prompt is asked equally often, at most `MOST_FURTHER` times; the last round
    takes prompts spread over the log. Answers have at most as many tokens as the longest logged
    one.

    Left out are prompts whose answer would always be the same, and those whose logged parameters a
    request here does not have: penalties, `min_p`, a grammar that does not compile, and stop
    strings, which are not in the table but ended a response that has none of `end_ids`.
    """
    if not further_answers(len(train), up_to):
        return []
    in_part = set(train)
    columns = [*REQUEST, "constraint", "finish_reason"]
    rows = [row for row in table.select_columns(columns) if row["sequence_id"] in in_part]
    longest = max((len(row["token_ids"]) - row["completion_start"] for row in rows), default=0)
    asked = [
        row
        for row in rows
        if row["completion_start"] < limit
        and _varies(row)
        and (compiles(row["grammar"]) if row["grammar"] else not row["constraint"])
        and (row["finish_reason"] == "length" or row["token_ids"][-1] in end_ids)
    ]
    requests: list[AskedRow] = []
    for number in range(1, MOST_FURTHER + 1):
        count = min(up_to - len(train) - len(requests), len(asked))
        # Spread over the log, since a beginning may be one user or one hour.
        for index in np.linspace(0, len(asked) - 1, count, dtype=int).tolist():
            row = asked[index]
            most_tokens = min(longest, limit - row["completion_start"])
            row_id = f"{row['sequence_id']}{SEPARATOR}{number}"
            requests.append(_asked(row, row_id, most_tokens))
    return requests


def _varies(row: dict[str, Any]) -> bool:
    """Whether a request's answers differ."""
    is_greedy = row["temperature"] < LEAST_TEMPERATURE or row["top_k"] == 1
    return not is_greedy and row["top_p"] >= LEAST_TOP_P


def _asked(row: dict[str, Any], row_id: str, max_tokens: int) -> AskedRow:
    return AskedRow(
        row_id=row_id,
        token_ids=row["token_ids"][: row["completion_start"]],
        temperature=round(row["temperature"], 4),  # the table holds float32
        top_p=max(round(row["top_p"], 4), LEAST_TOP_P),
        max_tokens=max_tokens,
        top_k=row["top_k"],
        grammar=row["grammar"],
    )


def requests_digest(rows: Sequence[AskedRow]) -> str:
    """Identifies requests: which prompts are asked, how often, and for how many tokens."""
    return value_digest([[row.row_id, row.max_tokens] for row in rows])


def logged_id(sequence_id: str) -> str:
    """Returns the id of the logged sequence whose prompt a further answer has."""
    return sequence_id.partition(SEPARATOR)[0]


def with_further(train: Sequence[str], captured: Iterable[str]) -> list[str]:
    """Returns the ids of `train`, each followed by its captured further answers.

    So all answers to a prompt are next to each other, and consecutive parts of the training part
    share no prompts (training/plan.py divides it to choose draft tokens).
    """
    further: dict[str, list[str]] = {}
    for name in captured:
        if logged_id(name) != name:
            further.setdefault(logged_id(name), []).append(name)
    return [name for logged in train for name in (logged, *further.get(logged, ()))]


class _Stored(BaseModel):
    """The file of answers."""

    source: dict[str, Any] = {}
    answers: dict[str, list[Count]] = {}


def stored_answers(
    answer: Answer,
    rows: Sequence[AskedRow],
    path: Path,
    source: dict[str, Any],
    batch_tokens: int,
) -> Answers:
    """Returns the target's response [T] int32 to each row, by id; without those that it failed.

    Responses for the same `source` are read from `path`; missing ones are generated. `batch_tokens`
    limits the prompt tokens of a batch; an interruption loses at most one batch.
    """
    if not rows:
        path.unlink(missing_ok=True)  # of an earlier capture with other settings
        return {}
    fix = "delete it and rerun the command"
    stored = read_form(_Stored, path, fix) if path.exists() else _Stored()
    answers = stored.answers if stored.source == source else {}
    console = Console(stderr=True, highlight=False)
    missing = [row for row in rows if row.row_id not in answers]
    for batch in batches_by_tokens(missing, batch_tokens):
        answered = answer(batch)
        answers |= {row.row_id: ids for row, ids in zip(batch, answered, strict=True)}
        write_json(path, {"source": source, "answers": answers}, private=True)
        console.print(f"answered by the target: {len(answers):,} of {len(rows):,} prompts")
    usable = ((name, token_ids) for name, token_ids in answers.items() if token_ids)
    return {name: np.asarray(token_ids, np.int32) for name, token_ids in usable}
