r"""The recipe's task check, and the equivalence test of task accuracy.

    check = load_function("outrider.recipes.nano_r1.tasks:resume_correct", key="eval.task")
    check = answer_check(Path("gsm8k_test.jsonl"))   # {"question": ..., "answer": "... #### 72"}
    check(prompt_text, completion_text)     # True, False, or None: no known answer
    task_accuracy(solved, sessions).custom_minus_none

With a file of known answers (GSM8K, or math in R1's style), a response's answer is the last
\boxed{} after its reasoning, else the text after `####`, else the last number. Numbers are compared
by value (1,200 = 1200.0, \frac{1}{2} = 0.5, 50\% = 50), anything else as text without spaces and
TeX markup.

A test that finds no difference is not evidence of equality: with few responses it never finds one.
So the null hypothesis is a difference as large as the margin, and two one-sided tests at 5 % must
reject it from above and from below (TOST: Schuirmann 1987). Both reject it exactly when the 90 %
interval lies inside the margins.

Differences are +1 (solved with speculation only), -1 (without only) or 0. If all are 0, a bootstrap
or a plain Wald interval has zero width even for a few responses. So half a response of each kind is
added (Agresti and Min 2005), here to the variance over sessions.
"""

import itertools
import json
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from outrider.common.errors import OutriderError
from outrider.common.own_code import load_function
from outrider.data.tokenize.emitted_text import END_THINK, THINK
from outrider.data.tokenize.tokens import load_tokenizer
from outrider.eval.config import ANSWERS, EvalConfig
from outrider.eval.results.parts import Variant
from outrider.eval.results.sections import Equivalence, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TaskCheck = Callable[[str, str], bool | None]
"""(prompt, completion) -> whether the task is solved; None if there is no known answer."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\$?(?:\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|\.\d+)")
# LaTeX around a number that does not change it: `\text{}`, `\left`, thin spaces, $, %.
DRESSING = re.compile(r"\\(?:text|mathrm|mathbf|left|right|displaystyle)\b|\\[,;!% ]|[\s${}%]")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")

TRIED = 32
"""Number of logged responses on which the check is tried before training."""

Z = float(norm.isf(0.05))
"""Normal quantile for each one-sided test at 5 %."""


def task_of(evaluation: EvalConfig) -> TaskCheck | None:
    """Resolves `eval.task`, a function or a file of answers; None if unset."""
    if evaluation.task is None:
        return None
    if evaluation.task.endswith(ANSWERS):
        return answer_check(Path(evaluation.task))
    return load_function(evaluation.task, key="eval.task")


def answer_check(path: Path) -> TaskCheck:
    """Returns a check against a file's answers; raises `OutriderError` for malformed files."""
    known = {_plain(question): answer for question, answer in _rows(Path(path))}
    if not known:
        raise OutriderError(
            f"eval.task = {str(path)!r}: the file is empty; each line must be an object with "
            "question and answer"
        )
    # A short question may be part of a longer one.
    longest_first = sorted(known, key=len, reverse=True)

    def check(prompt_text: str, completion_text: str) -> bool | None:
        prompt = _plain(prompt_text)
        asked = next((question for question in longest_first if question in prompt), None)
        if asked is None:
            return None
        if prompt_text.rstrip().endswith(THINK) and END_THINK not in completion_text:
            # R1's template opens the reasoning in the prompt; the response was cut mid-reasoning.
            return False
        answer = final_answer(completion_text)
        return answer is not None and same_answer(answer, known[asked])

    return check


def final_answer(completion_text: str) -> str | None:
    """Extracts the answer; None if it is missing or reasoning was cut off."""
    _, ended, answer = completion_text.rpartition(END_THINK)
    if not ended and THINK in completion_text:
        return None
    if (boxed := _last_boxed(answer)) is not None:
        return boxed
    if "####" in answer:
        # GSM8K marks its answers with ####.
        return answer.rsplit("####", 1)[1].strip().split("\n")[0]
    numbers = NUMBER.findall(answer)
    return numbers[-1] if numbers else None


def same_answer(answer: str, known: str) -> bool:
    """Whether two answers are the same number, or the same text."""
    known = known.rsplit("####", 1)[-1].strip()
    number = _number(answer)
    known_number = _number(known)
    if number is not None and known_number is not None:
        return number == known_number
    return _undressed(answer).lower() == _undressed(known).lower()


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OutriderError(
            f"eval.task = {str(path)!r}: cannot be read ({error}); give a file of JSON lines"
        ) from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield row["question"], str(row["answer"])
        except (ValueError, KeyError, TypeError):
            raise OutriderError(
                f"{path}, line {number}: each line must be a JSON object such as "
                '{"question": "How many ...?", "answer": "72"} (eval.task)'
            ) from None


def _last_boxed(text: str) -> str | None:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 1
    begin = start + len(r"\boxed{")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[begin:at].strip()
    return None


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(re.sub("[,()]", "", _undressed(FRACTION.sub(r"\1/\2", text))).rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


def _undressed(text: str) -> str:
    return DRESSING.sub("", text)


def _plain(text: str) -> str:
    return " ".join(text.split())


def response_text(tokenizer: "PreTrainedTokenizerBase", token_ids: Sequence[int]) -> str:
    """Decodes a response with special tokens, but without the final EOS token."""
    ended = bool(token_ids) and token_ids[-1] == tokenizer.eos_token_id
    return str(tokenizer.decode(list(token_ids[:-1] if ended else token_ids)))


def raised_at(error: Exception, quoting: bool) -> str:
    """Describes the check's error, quoting its message (possibly customer text) if `quoting`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = f" ({error})" if quoting else " (report.samples=true shows the message)"
    return f"{type(error).__name__} at {frame.filename}, line {frame.lineno}{message}"


def try_task(
    evaluation: EvalConfig, heldout: Iterable[Mapping[str, Any]], target_dir: Path, quoting: bool
) -> list[str]:
    """Tries the check on logged responses before training; returns advice.

    Raises an `OutriderError` that names the row if the check raises.
    """
    task = task_of(evaluation)
    if task is None or not (rows := list(heldout)):
        return []
    tokenizer = load_tokenizer(target_dir)
    setting = f"eval.task = {evaluation.task!r}"
    marks: list[bool] = []
    for row in rows[:TRIED]:
        response = response_text(tokenizer, row["token_ids"][row["completion_start"] :])
        try:
            mark = task(row["prompt_text"], response)
        except Exception as error:
            raise OutriderError(
                f"{setting} raised on the logged response {row['sequence_id']} (file-row of the"
                f" log): {raised_at(error, quoting)}. Return None for prompts that cannot be"
                " judged, or set eval.task: null"
            ) from error
        marks += [bool(mark)] if mark is not None else []
    advice = []
    if len(set(marks)) < 2:
        advice.append(
            f"{setting} has an answer for {len(marks)} of {len(rows[:TRIED])} logged responses and"
            f" finds {sum(marks)} solved; a check that always gives the same answer measures"
            " nothing, so make sure that it can parse these responses"
        )
    longest = evaluation.verification_max_tokens
    if cut := sum(len(row["token_ids"]) - row["completion_start"] > longest for row in rows):
        advice.append(
            f"eval.verification_max_tokens = {longest:,}: {cut:,} of {len(rows):,} logged responses"
            " are longer and are checked without their end; raise it"
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
    n = len(difference_N)
    value = float(difference_N.mean())
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    # Deviations are summed within a cluster before they are squared, so that similar responses of a
    # session count as one piece of evidence.
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
    """Responses needed for an interval half-width below `margin`; None if impossible.

    `variance` is the mean contribution of a response to the sum of squares.
    """
    if margin <= 0:
        return None
    return next(n for n in itertools.count(1) if Z * _error(variance * n, n) < margin)


def _error(spread: float, n: int) -> float:
    # Agresti and Min add half a response to each cell of the 2 x 2 table: 2 responses in all, 1 in
    # the sum of squares.
    return math.sqrt(spread + 1) / (n + 2)
