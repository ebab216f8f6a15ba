"""`outrider confirm` as a user types it: table, answer, JSON and exit status."""

import json
from pathlib import Path

import pytest

from outrider.eval.confirm.expectation import expected_figures
from outrider.eval.confirm.figures import LENGTH
from tests.cli.commands import assert_one_message, json_line, run
from tests.eval.confirm.served import recorded, sample_report, served_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and scrapes of servers as it predicts, with another K, and of unlike ones."""
    folder = tmp_path_factory.mktemp("confirm")
    (folder / "march").mkdir()
    sample_report().write(folder / "march" / "report.json")
    custom = expected_figures(sample_report(), "custom")
    texts = {
        "seen.txt": served_text(tpot_ms=custom.tpot_ms(1.0)),
        "slow.txt": served_text(k=2, tpot_ms=2 * custom.tpot_ms(1.0), seed=1),
        "yesterday.txt": recorded("k3_first"),
        "today.txt": recorded("k3_second"),
        "page.html": "<html>\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_as_reported(folder: Path) -> None:
    finished = run("outrider", "confirm", "march", "--metrics", "seen.txt", cwd=folder)
    answer = json_line(finished)
    assert answer["reading"] == "as reported"
    assert answer["answer"].splitlines() == finished.stderr.splitlines()[-3:]
    assert "acceptance length: as reported" in answer["answer"]
    by_file = ["confirm", "march/report.json", "--metrics", "seen.txt"]
    assert json_line(run("outrider", *by_file, cwd=folder)) == answer


def test_worse_than_reported_is_status_3(folder: Path) -> None:
    finished = run("outrider", "confirm", "march", "--metrics", "slow.txt", cwd=folder)
    assert finished.returncode == 3, finished.stderr
    answer = json.loads(finished.stdout.splitlines()[-1])
    assert answer["worse"] and answer["figures"][LENGTH]["because"][0]["name"] == "K"
    assert "because K is 2 instead of 3" in finished.stderr


def test_replicas_windows_and_scrapes_from_before(folder: Path) -> None:
    words = ["confirm", "march", "--metrics", "today.txt", "seen.txt", "--since"]
    words += ["yesterday.txt", "seen.txt", "--before", "slow.txt"]
    finished = run("outrider", *words, cwd=folder)
    conditions = json.loads(finished.stdout.splitlines()[-1])["conditions"]
    assert conditions["seen"]["servers"] == 2
    assert conditions["seen"]["requests"] == 24  # of today.txt since yesterday.txt, and none
    assert conditions["before"]["k"] == 2


@pytest.mark.parametrize(
    ("words", "part", "status"),
    [
        (["march"], "--metrics", 2),
        (["march", "--metrics"], "--metrics", 2),
        (["march", "--metrics", "a", "b", "--since", "c"], "--since has 1 scrapes", 2),
        (["gone", "--metrics", "seen.txt"], "gone/report.json: no such file", 1),
        (["march", "--metrics", "gone.txt"], "gone.txt: no such file; give a file with", 1),
        (["march", "--metrics", "http://127.0.0.1:9"], "http://127.0.0.1:9/metrics: no answer", 1),
        (["march", "--metrics", "page.html"], "page.html: not the text of /metrics", 1),
        (["march", "--metrics", "today.txt", "yesterday.txt"], "are of the same server", 1),
        (["march", "--metrics", "yesterday.txt", "--since", "today.txt"], "restarted in", 1),
        (["march", "--metrics", "today.txt", "--before", "today.txt"], "of the same server", 1),
        (["march", "--metrics", "today.txt", "--since", "today.txt"], "0 finished requests", 1),
        (["march", "--metrics", "seen.txt", "--model", "r1"], "no model r1, but short_r1", 1),
    ],
)
def test_mistakes(folder: Path, words: list[str], part: str, status: int) -> None:
    assert_one_message(run("outrider", "confirm", *words, cwd=folder), part, status=status)
