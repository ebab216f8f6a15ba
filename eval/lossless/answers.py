r"""Checks final answers of responses against known ones: GSM8K, and mathematics as R1 writes it.

    check = answer_check(Path("gsm8k_test.jsonl"))   # {"question": ..., "answer": "... #### 72"}
    check(prompt_text, completion_text)              # True, False, or None: another question

The answer of a response is, after its reasoning, the last \boxed{}, else what follows `####`, else
the last number. Numbers are compared as numbers (1,200 = 1200.0, \frac{1}{2} = 0.5, 50\% = 50),
anything else as text without spaces and TeX markup.
"""

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.data.tokenize.emitted_text import END_THINK, THINK

TaskCheck = Callable[[str, str], bool | None]
"""From (prompt, completion) to solved, not solved, or None: no known answer."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\$?(?:\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|\.\d+)")
DRESSING = re.compile(r"\\(?:text|mathrm|mathbf|left|right|displaystyle)\b|\\[,;!% ]|[\s${}%]")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


def answer_check(path: Path) -> TaskCheck:
    """The check against the file's answers; a file that cannot be read as such is an
    `OutriderError` with its line."""
    known = {_plain(question): answer for question, answer in _rows(Path(path))}
    if not known:
        raise OutriderError(
            f"eval.task = {str(path)!r}: the file is empty; each line must be an object with "
            "question and answer"
        )
    longest_first = sorted(known, key=len, reverse=True)

    def check(prompt_text: str, completion_text: str) -> bool | None:
        prompt = _plain(prompt_text)
        asked = next((question for question in longest_first if question in prompt), None)
        if asked is None:
            return None
        if prompt_text.rstrip().endswith(THINK) and END_THINK not in completion_text:
            # R1's template opens the reasoning in the prompt, and the response was cut in it.
            return False
        given = final_answer(completion_text)
        return given is not None and same_answer(given, known[asked])

    return check


def final_answer(completion_text: str) -> str | None:
    """What a response answers; None where it has not come to an answer, as one that was cut in its
    reasoning."""
    _, ended, answer = completion_text.rpartition(END_THINK)
    if not ended and THINK in completion_text:
        return None
    if (boxed := _last_boxed(answer)) is not None:
        return boxed
    if "####" in answer:
        return answer.rsplit("####", 1)[1].strip().split("\n")[0]
    numbers = NUMBER.findall(answer)
    return numbers[-1] if numbers else None


def same_answer(given: str, known: str) -> bool:
    """Whether two answers are the same number, or the same text."""
    known = known.rsplit("####", 1)[-1].strip()
    one, other = _number(given), _number(known)
    if one is not None and other is not None:
        return one == other
    return _undressed(given).lower() == _undressed(known).lower()


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
                f"{path}, line {number}: not an object with question and answer, such as "
                '{"question": "How many ...?", "answer": "72"}; eval.task reads one a line'
            ) from None


def _last_boxed(text: str) -> str | None:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len(r"\boxed{")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[begin:at].strip()
    return None


def _number(text: str) -> Fraction | None:
    text = (
        _undressed(FRACTION.sub(r"(\1)/(\2)", text))
        .replace(",", "")
        .replace("(", "")
        .replace(")", "")
        .rstrip(".")
    )
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def _undressed(text: str) -> str:
    return DRESSING.sub("", text)


def _plain(text: str) -> str:
    return " ".join(text.split())
