r"""Task checks and known answers are read; TOST against its formula and by simulation."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.task_accuracy import (
    Z,
    answer_check,
    equivalence,
    final_answer,
    responses_needed,
    same_answer,
    task_accuracy,
    try_task,
)
from outrider.pipeline.recipe.shipped import SHIPPED

NANO_R1 = SHIPPED / "nano_r1" / "target"
ROWS = [
    {
        "sequence_id": f"0-{n}",
        "token_ids": [5, 6, 7 + n, 1],
        "completion_start": 2,
        "prompt_text": text,
    }
    for n, text in enumerate(("a question", "a secret", "another question"))
]


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in the directory where the command starts, as a console script sees it."""
    (tmp_path / "own_checks.py").write_text(
        "seen = []\n"
        "def raises(prompt, response):\n"
        "    if 'secret' in prompt:\n"
        "        raise ValueError(prompt)\n"
        "def never(prompt, response):\n    return False\n"
        "def differs(prompt, response):\n"
        "    seen.append(response)\n    return 'another' in prompt\n"
        "def silent(prompt, response):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *sys.path[1:]])
    monkeypatch.delitem(sys.modules, "own_checks", raising=False)


def tried(function: str, quoting: bool = False, **settings: int) -> list[str]:
    return try_task(EvalConfig(task=f"own_checks:{function}", **settings), ROWS, NANO_R1, quoting)


def test_a_check_that_raises_on_a_logged_response_ends_the_run_with_the_row(checks: None) -> None:
    where = r"response 0-1 .*ValueError at .*own_checks\.py, line 4"
    with pytest.raises(OutriderError, match=where) as raised:
        tried("raises")
    assert "secret" not in str(raised.value), "customer text"
    with pytest.raises(OutriderError, match="a secret"):
        tried("raises", quoting=True)


def test_a_check_that_distinguishes_nothing_is_advised_against(checks: None) -> None:
    (advice,) = tried("never")
    assert "'own_checks:never' has an answer for 3 of 3 logged responses and finds 0" in advice
    assert "has an answer for 0 of 3" in tried("silent")[0]
    assert tried("differs") == []
    assert all("sentence" not in text for text in importlib.import_module("own_checks").seen)


def test_responses_longer_than_the_verification_s_are_counted(checks: None) -> None:
    (advice,) = tried("differs", verification_max_tokens=1)
    assert advice.startswith("eval.verification_max_tokens = 1: 3 of 3 logged responses are longer")
    assert try_task(EvalConfig(verification_max_tokens=1), ROWS, NANO_R1, False) == []


def test_task_accuracy_is_paired():
    marks = [True, False] * 20
    turned = [not mark for mark in marks]
    for custom, value, changed in ((marks, 0.0, 0), (turned, 0.0, 1), ([True] * 40, 0.5, 0.25)):
        solved = {"none": marks, "base": marks, "custom": custom}
        result = task_accuracy(solved, [str(i) for i in range(40)])
        assert result.none == 20
        difference = result.custom_minus_none
        assert (difference.value, difference.variance) == (value, changed)


@pytest.mark.parametrize(
    ("with_only", "without_only", "same"), [(0, 0, 24), (3, 1, 40), (10, 14, 100)]
)
def test_without_clusters_it_is_agresti_and_min_s_interval(with_only, without_only, same):
    differences = [1] * with_only + [-1] * without_only + [0] * same
    n = len(differences)
    found = equivalence(differences, [str(i) for i in range(n)])
    # Their table with half a response added to each of its four cells; the value stays observed.
    b = with_only + 0.5
    c = without_only + 0.5
    literal = np.sqrt((b + c) - (with_only - without_only) ** 2 / n) / (n + 2)
    assert found.value == pytest.approx((with_only - without_only) / n)
    assert found.high - found.value == pytest.approx(Z * literal)


def equivalent(differences, clusters, margin=0.1):
    return equivalence(differences, clusters).within(margin)


def test_few_equal_responses_and_few_sessions_show_nothing():
    assert not equivalent([0] * 14, range(14)) and equivalent([0] * 15, range(15))
    assert responses_needed(0.0, 0.1) == 15
    differences = [1] * 20 + [-1] * 20 + [0] * 160
    assert equivalent(differences, range(200))
    together = [i // 10 for i in range(200)]  # two sessions +1, two -1
    assert not equivalent(differences, together)
    assert equivalence(differences, together).clusters == 20


def test_what_is_as_bad_as_the_margin_passes_one_time_in_twenty():
    """2,000 evaluations of 150 pairs: with a difference equal to the margin, and with none."""
    random = np.random.default_rng(0)
    n = 150

    def passed(with_only, without_only):
        p = [with_only, without_only, 1 - with_only - without_only]
        draws = random.choice([1.0, -1.0, 0.0], p=p, size=(2000, n))
        return np.mean([equivalent(row, range(n)) for row in draws])

    assert 0.02 < passed(0.05, 0.15) < 0.065
    assert passed(0.05, 0.05) > 0.9


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"48/2 = 24, so \boxed{72}. That is 3 boxes.", "72"),
        (r"First \boxed{1}, no: \boxed{\frac{3}{4}}", r"\frac{3}{4}"),
        ("Natalia sold 48 + 24.\n#### 1,072\n", "1,072"),
        ("The answer is 18.", "18"),
        ("It costs $1,234.50 in all.", "$1,234.50"),
        ("I think of 7.</think>\n\nThe answer is -3.", "-3"),
        ("<think>7 and then 8", None),
        ("</think>No idea.", None),
        ("It takes 3-4 days.", "4"),
        (r"\boxed{5", "5"),  # cut off: the number is all there is
    ],
)
def test_the_final_answer_is_found(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("given", "known", "same"),
    [
        ("72", "He has 24 + 48.\n#### 72", True),
        ("1,200", "1200.0", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac{1}{3}", "1/3", True),
        ("0.333", "1/3", False),
        (r"50\%", "50", True),
        ("$18", "18", True),
        ("-3", "3", False),
        ("18.", "18", True),
        (r"\text{Monday}", "monday", True),
        (r"x^2 + 1", "x^2+1", True),
        ("Tuesday", "Monday", False),
        ("1/0", "0", False),
    ],
)
def test_numbers_are_compared_as_numbers_and_text_as_text(given, known, same):
    assert same_answer(given, known) is same


def test_a_prompt_is_judged_by_the_question_that_it_holds(tmp_path):
    rows = [
        {"question": "Tom has 3 boxes. How many?", "answer": "3 * 12 <<3*12=36>>\n#### 36"},
        {"question": "Tom has 3 boxes. How many? Mind the lid.", "answer": "35"},
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check = answer_check(tmp_path / "answers.jsonl")
    asked = "<｜User｜>Tom has 3 boxes.\n How many?<｜Assistant｜>"
    assert check(asked, "The answer is 36.") is True
    assert check(asked, "The answer is 35.") is False
    assert check(asked + "<think>\n", "36 is what I") is False  # cut in its reasoning
    assert check(asked + "<think>\n", "35?</think> 36") is True
    assert check(asked.replace("How many?", "How many? Mind the lid."), "35") is True
    assert check("<｜User｜>Something else?<｜Assistant｜>", "36") is None
