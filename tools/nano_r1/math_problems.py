"""Arithmetic word problems (GSM8K): calculations as reasoning, one sentence as answer.

GSM8K marks each calculation as `<<48/2=24>>`; the rest of its worked answers is not used. If every
operand comes from the question or an earlier result, the numbers are redrawn, so that the model
learns to read them from the prompt.

    next(conversations(Path("corpus"), seed=0, count=1, part="train")).reasoning
"""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tools.nano_r1.conversations import Conversation, Part, corpus_rows, part_of

CALCULATION = re.compile(r"<<([0-9.+*/()-]+)=([0-9.]+)>>")
# Numbers joined by single operators, possibly with parentheses.
PLAIN = re.compile(r"\(*[0-9.]+(?:\)*[+*/-]\(*[0-9.]+)+\)*")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
# About 120 tokens; longer problems are too hard for such a small model.
LONGEST_QUESTION = 420
MOST_STEPS = 2
# Attempts to draw new numbers before the problem is left unchanged.
DRAWS = 30


def conversations(
    corpus_dir: Path, seed: int, count: int | None, part: Part
) -> Iterator[Conversation]:
    """Yields `count` problems (None: endless); each pass has new numbers."""
    rng = random.Random(f"math {seed} {part}")
    return itertools.islice(_endless(problems(corpus_dir, part), rng), count)


def _endless(
    rows: list[tuple[str, list[tuple[str, str]]]], rng: random.Random
) -> Iterator[Conversation]:
    while True:
        for question, steps in rng.sample(rows, len(rows)):
            yield conversation(*renumbered(question, steps, rng))


def problems(corpus_dir: Path, part: Part) -> list[tuple[str, list[tuple[str, str]]]]:
    """The part's usable problems: (question, [(expression, result)]); the last is the answer."""
    usable_problems = []
    for row in corpus_rows(corpus_dir, "gsm8k_train.jsonl.gz"):
        question = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(row["question"].split()))
        steps = CALCULATION.findall(row["answer"])
        final = row["answer"].rsplit("####", 1)[-1].strip().replace(",", "")
        plain = all(PLAIN.fullmatch(expression) for expression, _ in steps)
        usable = (
            plain
            and 0 < len(steps) <= MOST_STEPS
            and steps[-1][1] == final
            and len(steps) == row["answer"].count("<<")
        )
        if usable and len(question) <= LONGEST_QUESTION and part_of(question) == part:
            usable_problems.append((question, steps))
    return usable_problems


def renumbered(
    question: str, steps: list[tuple[str, str]], rng: random.Random
) -> tuple[str, list[tuple[str, str]]]:
    """Replaces the problem's numbers with others of the same length.

    All results remain whole numbers. The problem is unchanged if no such numbers are found.
    """
    numbers = set(NUMBER.findall(question))
    results = [result for _, result in steps]
    if (
        numbers & set(results)
        or len(set(results)) < len(results)
        or not all(n.isdigit() for n in [*numbers, *results])
    ):
        return question, steps
    for _ in range(DRAWS):
        new = {
            number: number if int(number) < 2 else str(_like(number, rng))
            for number in sorted(numbers)
        }
        drawn = _evaluate(steps, new)
        if drawn is not None:
            return _replaced(question, new), drawn
    return question, steps


def _replaced(text: str, values: dict[str, str]) -> str:
    return NUMBER.sub(lambda match: values.get(match.group(), match.group()), text)


def _like(number: str, rng: random.Random) -> int:
    low = 2 if len(number) == 1 else 10 ** (len(number) - 1)
    return rng.randint(low, 10 ** len(number) - 1)


def _evaluate(steps: list[tuple[str, str]], values: dict[str, str]) -> list[tuple[str, str]] | None:
    """Recomputes the steps; None unless every result is a positive whole number."""
    values = dict(values)
    drawn = []
    for expression, result in steps:
        replaced = _replaced(expression, values)
        try:
            value = eval(
                replaced, {"__builtins__": {}}
            )  # only digits and operators, see CALCULATION
        except (SyntaxError, ZeroDivisionError, TypeError):
            return None
        if value <= 0 or abs(value - round(value)) > 1e-9:
            return None
        values[result] = str(round(value))
        drawn.append((replaced, values[result]))
    return drawn


def conversation(question: str, steps: list[tuple[str, str]]) -> Conversation:
    asked = re.split(r"(?<=[.!?]) ", question)[-1]
    lines = [
        f"The question is: {asked}",
        f"The numbers are: {', '.join(NUMBER.findall(question))}.",
    ]
    lines += [
        f"Step {number}: {expression}={result}"
        for number, (expression, result) in enumerate(steps, 1)
    ]
    return Conversation(
        work="math",
        messages=[{"role": "user", "content": question}],
        reasoning="\n".join(lines),
        answer=f"The answer is {steps[-1][1]}.",
        route="arithmetic",
    )
