"""The recipe's task check: a function by its import string, or a file of known answers.

check = load_task("outrider.recipes.nano_r1.tasks:resume_correct")
check(prompt_text, completion_text)     # True, False, or None: no known answer
"""

import importlib
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.answers import Task, answer_check


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
