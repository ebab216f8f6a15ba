r"""Final answers as GSM8K, R1 and nano R1 write them."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.answers import answer_check, final_answer, same_answer
from outrider.eval.lossless.task_accuracy import task_of
from tools.nano_r1.math_problems import conversation


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


@pytest.fixture
def answers(tmp_path):
    rows = [
        {"question": "Tom has 3 boxes. How many?", "answer": "3 * 12 <<3*12=36>>\n#### 36"},
        {"question": "Tom has 3 boxes. How many? Mind the lid.", "answer": "35"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_prompt_is_judged_by_the_question_that_it_holds(answers):
    check = answer_check(answers)
    asked = "<｜User｜>Tom has 3 boxes.\n How many?<｜Assistant｜>"
    assert check(asked, "The answer is 36.") is True
    assert check(asked, "The answer is 35.") is False
    assert check(asked + "<think>\n", "36 is what I") is False  # cut in its reasoning
    assert check(asked + "<think>\n", "35?</think> 36") is True
    assert check(asked.replace("How many?", "How many? Mind the lid."), "35") is True
    assert check("<｜User｜>Something else?<｜Assistant｜>", "36") is None


def test_nano_r1_s_own_arithmetic_is_read(tmp_path):
    problem = conversation("Ann has 12 pens and buys 30. How many has she?", [("12+30", "42")])
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"question": problem.messages[0]["content"], "answer": "42"}))
    check = task_of(EvalConfig(task=str(path)))
    prompt = f"<｜User｜>{problem.messages[0]['content']}<｜Assistant｜><think>\n"
    assert check(prompt, f"{problem.reasoning}\n</think>\n\n{problem.answer}") is True
    assert (
        check(prompt, f"{problem.reasoning}\n</think>\n\n{problem.answer.replace('42', '43')}")
        is False
    )


def test_what_cannot_be_read_says_which_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"question": "a", "answer": 1}\n{"question": "b"}\n')
    with pytest.raises(
        OutriderError, match=r"answers\.jsonl, line 2: not an object with question and answer"
    ):
        answer_check(path)
    path.write_text("")
    with pytest.raises(OutriderError, match="the file is empty"):
        answer_check(path)
    with pytest.raises(OutriderError, match=r"eval\.task = .*gone\.jsonl.*cannot be read"):
        answer_check(tmp_path / "gone.jsonl")
