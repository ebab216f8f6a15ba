import importlib
import sys
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.task_accuracy import load_task, try_task
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
    with pytest.raises(OutriderError) as raised:
        tried("raises")
    message = str(raised.value)
    assert "response 0-1 " in message and "own_checks.py, line 4" in message
    assert "ValueError" in message and "secret" not in message, "customer text"
    with pytest.raises(OutriderError, match="a secret"):
        tried("raises", quoting=True)


def test_a_check_that_distinguishes_nothing_is_advised_against(checks: None) -> None:
    (advice,) = tried("never")
    assert advice.startswith(
        "eval.task = 'own_checks:never' finds none of 3 logged responses solved"
    )
    assert "no answer for any of 3" in tried("silent")[0]
    assert tried("differs") == []
    assert all("sentence" not in text for text in importlib.import_module("own_checks").seen)


def test_responses_longer_than_the_verification_s_are_counted(checks: None) -> None:
    (advice,) = tried("differs", verification_max_tokens=1)
    assert advice.startswith("eval.verification_max_tokens = 1: 3 of 3 logged responses are longer")
    assert try_task(EvalConfig(verification_max_tokens=1), ROWS, NANO_R1, False) == []


def test_a_task_is_found_by_its_import_string():
    assert load_task("posixpath:join")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("posixpath", "module:function"),
        ("no_such_module:f", "cannot import"),
        ("posixpath:jion", "no function jion; it has .*join"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, message):
    with pytest.raises(OutriderError, match=message):
        load_task(name)
