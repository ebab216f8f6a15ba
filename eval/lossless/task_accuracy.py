"""The recipe's task check: a function by its import string, or a file of known answers.

check = load_task("outrider.recipes.nano_r1.tasks:resume_correct")
check(prompt_text, completion_text)     # True, False, or None: no known answer
"""

import importlib
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.answers import Task, answer_check

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRIED = 32
"""Logged responses on which the check is tried before training."""


def task_of(evaluation: EvalConfig) -> Task | None:
    """The check that `eval.task` or `eval.answers` names; None where neither is set."""
    if evaluation.answers is not None:
        return answer_check(Path(evaluation.answers))
    return None if evaluation.task is None else load_task(evaluation.task)


def load_task(name: str) -> Task:
    """The function that `eval.task` names."""
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise OutriderError(
            f"eval.task = {name!r}: must be module:function, such as "
            "my_checks.resumes:verdict_correct"
        )
    if str(Path.cwd()) not in sys.path:  # a console script has only its own folder
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise OutriderError(
            f"eval.task = {name!r}: cannot import {module_name} ({error}); install it or correct "
            "the name"
        ) from error
    task = getattr(module, function_name, None)
    if not callable(task):
        functions = sorted(
            n for n, value in vars(module).items() if callable(value) and not n.startswith("_")
        )
        raise OutriderError(
            f"eval.task = {name!r}: {module_name} has no function {function_name}; it has "
            f"{', '.join(functions)}"
        )
    return task


def response_text(tokenizer: "PreTrainedTokenizerBase", token_ids: Sequence[int]) -> str:
    """A response as a check reads it: special tokens as text, without the end of sequence."""
    ended = bool(token_ids) and token_ids[-1] == tokenizer.eos_token_id
    return str(tokenizer.decode(list(token_ids[:-1] if ended else token_ids)))


def raised_at(error: Exception, quoting: bool) -> str:
    """An error of the check in words; its message may hold customer text, so only if `quoting`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = f" ({error})" if quoting else " (report.samples=true shows the message)"
    return f"{type(error).__name__} at {frame.filename}, line {frame.lineno}{message}"


def try_task(
    evaluation: EvalConfig, heldout: Iterable[Mapping[str, Any]], target_dir: Path, quoting: bool
) -> list[str]:
    """Advice from the check on logged responses, before anything is trained.

    `heldout`: rows of the held-out part. A check that raises is an `OutriderError` with the row.
    """
    task = task_of(evaluation)
    if task is None or not (rows := list(heldout)):
        return []
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_dir)
    key = "eval.task" if evaluation.answers is None else "eval.answers"
    named = f"{key} = {evaluation.task or evaluation.answers!r}"
    marks: list[bool] = []
    for row in rows[:TRIED]:
        response = response_text(tokenizer, row["token_ids"][row["completion_start"] :])
        try:
            mark = task(row["prompt_text"], response)
        except Exception as error:
            raise OutriderError(
                f"{named} raised on the logged response {row['sequence_id']} (file-row of the log):"
                f" {raised_at(error, quoting)}. Return None for a prompt that it cannot judge, or"
                f" set {key}: null"
            ) from error
        marks += [bool(mark)] if mark is not None else []
    tried = len(rows[:TRIED])
    advice = []
    if not marks:
        advice.append(f"{named} has no answer for any of {tried} logged responses: it checks none")
    elif len(set(marks)) == 1:
        every = "every one" if marks[0] else "none"
        advice.append(
            f"{named} finds {every} of {len(marks)} logged responses solved; a check that always"
            " gives the same answer measures nothing, so make sure that it reads these responses"
        )
    longest = evaluation.verification_max_tokens
    if cut := sum(len(row["token_ids"]) - row["completion_start"] > longest for row in rows):
        advice.append(
            f"eval.verification_max_tokens = {longest:,}: {cut:,} of {len(rows):,} logged responses"
            " are longer, and such ones are checked without their end; raise it"
        )
    return advice
