"""The recipe's task check, and whether as many tasks are solved with speculation as without.

    check = load_task("outrider.recipes.nano_r1.tasks:resume_correct")
    check(prompt_text, completion_text)     # True, False, or None: no known answer
    task_accuracy(solved, sessions).custom_minus_none

A test that finds no difference is not evidence of equality: with few responses it never finds one.
So the null hypothesis is a difference as large as the margin, and two one-sided tests at 5 % must
reject it from above and from below (TOST: Schuirmann 1987). Both do exactly when the 90 % interval
lies inside the margins.

Differences are +1 (solved with speculation only), -1 (without only) or 0. Where all are 0 a
bootstrap or a plain Wald interval has no width, however few they are. So half a response of each
kind is added (Agresti and Min 2005), here to the variance over sessions.
"""

import importlib
import math
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from outrider.common.errors import OutriderError
from outrider.eval.config import ANSWERS, EvalConfig
from outrider.eval.lossless.answers import TaskCheck, answer_check
from outrider.eval.results.parts import Variant
from outrider.eval.results.verification import Equivalence, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRIED = 32
"""Logged responses on which the check is tried before training."""

Z = float(norm.isf(0.05))
"""Of each one-sided test at 5 %."""


def task_of(evaluation: EvalConfig) -> TaskCheck | None:
    """The check that `eval.task` names: a function, or a file of known answers; None without."""
    if evaluation.task is None:
        return None
    if evaluation.task.endswith(ANSWERS):
        return answer_check(Path(evaluation.task))
    return load_task(evaluation.task)


def load_task(name: str) -> TaskCheck:
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
    named = f"eval.task = {evaluation.task!r}"
    marks: list[bool] = []
    for row in rows[:TRIED]:
        response = response_text(tokenizer, row["token_ids"][row["completion_start"] :])
        try:
            mark = task(row["prompt_text"], response)
        except Exception as error:
            raise OutriderError(
                f"{named} raised on the logged response {row['sequence_id']} (file-row of the log):"
                f" {raised_at(error, quoting)}. Return None for a prompt that it cannot judge, or"
                " set eval.task: null"
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


def task_accuracy(solved: Mapping[Variant, list[bool]], sessions: Sequence[str]) -> Task:
    """Solved tasks per variant, and custom minus none, paired by prompt."""
    counts = {variant: sum(marks) for variant, marks in solved.items()}
    differences = np.array(solved["custom"], float) - np.array(solved["none"], float)
    return Task(**counts, custom_minus_none=equivalence(differences, sessions))


def equivalence(differences: ArrayLike, clusters: Sequence[str]) -> Equivalence:
    """The mean difference with its 90 % interval over clusters."""
    difference_N = np.asarray(differences, np.float64)
    n, value = len(difference_N), float(difference_N.mean())
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    spread = float((np.bincount(cluster_N, difference_N - value) ** 2).sum())
    margin = Z * _error(spread, n)
    return Equivalence(
        value=value,
        low=value - margin,
        high=value + margin,
        variance=spread / n,
        observations=n,
        clusters=int(cluster_N.max()) + 1,
    )


def responses_needed(variance: float, margin: float) -> int | None:
    """Least number of responses whose interval is narrower than the margin; None where none is.

    `variance` is what each response adds to the sum of squares.
    """
    if margin <= 0:
        return None
    needed = 1
    while Z * _error(variance * needed, needed) >= margin:
        needed += 1
    return needed


def _error(spread: float, n: int) -> float:
    return math.sqrt(spread + 1) / (n + 2)
