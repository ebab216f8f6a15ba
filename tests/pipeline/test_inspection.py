"""`outrider inspect` as a user runs it: the page, JSON object, exit statuses, a run's ingest."""

import io
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from outrider.common.files import read_json
from outrider.common.process_tree import wait_until
from outrider.pipeline.inspection import (
    COUNTS,
    LENGTHS,
    gain,
    inspect_recipe,
    print_inspection,
    print_lookup,
)
from outrider.pipeline.recipe.load import load_overrides, load_recipe
from tests.cli.commands import assert_one_message, run
from tests.cli.workplace import write_workplace

KEYS = {
    *("rows", "exchanges", "joined", "extra_choices", "rejects", "formats", "fidelity", "models"),
    *("tenants", "lengths", "sampling", "time", "duplicates", "predicted", "sessions", "split"),
    *("lookup", "problems"),
}


@pytest.fixture(scope="module")
def shipped():
    return inspect_recipe(load_recipe("social_chat").recipe, rows_per_file=None, samples=2)


def test_the_shipped_log(shipped):
    found, samples = shipped
    assert set(found) >= KEYS and json.loads(json.dumps(found, allow_nan=False)) == found
    counts = found["rows"], found["exchanges"], found["rejects"], found["problems"]
    assert counts == (600, 600, {}, [])
    assert sum(found["fidelity"].values()) == 600 and found["formats"] == {"openai_pairs": 600}
    predicted = found["predicted"]
    assert predicted["tokens"] == sum(
        found["split"][part]["tokens"] for part in ("train", "validation", "heldout")
    )
    assert predicted["bytes"] == predicted["tokens"] * (192 * 2 + 4)
    assert len(samples) == 2 and "completion, trained on" in samples[0].plain
    *_, completion = samples[0].plain.partition("completion, trained on")
    words = [word for word in completion.split() if word.isalpha() and len(word) > 6]
    assert words and not [word for word in words if word in json.dumps(found)]


def test_the_gain_is_that_of_the_measured_curve():
    measured = read_json(Path("benchmarks/results/learning_curve.json"))["SmolLM2, from scratch"]
    assert (1, *map(int, measured)) == COUNTS
    lengths = [point["value"] for point in measured.values()]
    assert lengths == pytest.approx(LENGTHS[1:], abs=5e-4)
    share = (lengths[3] - 1) / (lengths[-1] - 1)
    assert f"{share:.0%} of" in gain(250) and "100% of" in gain(9000) and "about 0% of" in gain(0)
    # Between points, on the logarithm.
    between = ((lengths[3] + lengths[4]) / 2 - 1) / (lengths[-1] - 1)
    assert f"{between:.0%} of" in gain(354)


def test_the_page_prints_names_of_a_log_and_does_not_obey_them(shipped):
    found, _ = shipped
    hostile = {
        **found,
        "tenants": {"[red]x[/]\x1b[2J": 5},
        "rejects": {"not_json": 1},
        "reject_examples": {
            "not_json": {"place": "/logs/[b]\x07.jsonl:3", "detail": "at character 3"}
        },
    }
    console = Console(record=True, width=100, file=io.StringIO())
    print_inspection(hostile, console)
    text = console.export_text()
    assert "600 = 600 exchanges + 1 rejects" in text and "5,500 tokens/s" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "[red]x[/]␛[2J 5" in text and "/logs/[b]␇.jsonl:3" in text and "\x1b" not in text


def test_the_page_has_what_lookup_would_deliver(shipped):
    found, _ = shipped
    lookup = found["lookup"]
    assert lookup["replayed"]["responses"] > 90 and lookup["order"] == "time"
    assert lookup["lookups"].keys() | lookup["missing"].keys() == {"ngram", "suffix"}
    console = Console(record=True, width=80, file=io.StringIO())
    print_lookup({**lookup, "missing": {"suffix": "suffix lookup: run `it`"}}, console)
    text = console.export_text()
    ngram = lookup["lookups"]["ngram"]["new"]
    cells = " ".join(f"{length:.2f}" for length in ngram["by_k"])
    assert f"n-gram lookup new {ngram['responses']} {cells}" in " ".join(text.split())
    assert "K=8" in text and "suffix lookup: run `it`" in text
    assert f"advice: {lookup['advice']}" in " ".join(text.split())


def test_a_log_with_problems_is_not_replayed():
    console = Console(record=True, width=80, file=io.StringIO())
    print_lookup({"skipped": "the traffic has 2 sessions"}, console)
    assert console.export_text().endswith("K drafts: the traffic has 2 sessions\n")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, nano_r1):
    tenant = {"request__metadata__tenant": "[bold]acme[/]\x1b[2J"}
    folder = write_workplace(tmp_path_factory.mktemp("workplace"), nano_r1, tenant)
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text((nano_r1 / "config.json").read_text())
    return folder


def test_json_is_one_object_on_stdout(workplace):
    finished = run("outrider", "inspect", "traffic.path=log.jsonl", "--json", cwd=workplace)
    assert finished.returncode == 0, finished.stderr
    (line,) = finished.stdout.splitlines()
    found = json.loads(line)
    assert set(found) >= KEYS and found["exchanges"] == 40 and found["target"] == "nano_r1"
    assert not (workplace / "runs").exists()


def test_off_a_terminal_no_customer_text_is_printed(workplace):
    finished = run("outrider", "inspect", "--recipe", "mine.yaml", "--first", "20", cwd=workplace)
    assert finished.returncode == 0, finished.stderr
    assert "first 20 rows of each file" in finished.stdout and "20 exchanges" in finished.stdout
    assert "trained on (" not in finished.stdout and "\x1b[2J" not in finished.stdout


@pytest.mark.parametrize(
    ("words", "part", "status"),
    [
        (["traffic.path=gone.jsonl"], "gone.jsonl': no such file or folder", 1),
        (["traffic.path=log.jsonl", "target.model=gone"], "target.model = 'gone': no such", 1),
        (["traffic.path=log.jsonl", "target.model=./bare"], "bare: no usable tokenizer", 1),
        (["traffic.path=log.jsonl", "traffic.formt=x"], "did you mean `traffic.format`?", 1),
        ([], "nothing to inspect: give a recipe, or traffic.path=LOGS", 2),
        (["mine.yaml", "--first", "0"], "--first 0: give a number from 1", 2),
        (["mine.yaml", "--samples", "2", "--json"], "which --json never contains", 2),
        (["mine.yaml", "--frist", "3"], "Unknown option: --frist. Did you mean --first?", 2),
    ],
)
def test_a_mistake_is_one_message_and_its_status(workplace, words, part, status):
    assert_one_message(run("outrider", "inspect", *words, cwd=workplace), part, status=status)


def test_the_temporary_folder_is_private_and_removed(workplace, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupted(**_):
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.pipeline.inspection.inspect_log", interrupted)
    recipe = load_overrides([f"traffic.path={workplace / 'log.jsonl'}"]).recipe
    with pytest.raises(KeyboardInterrupt):
        inspect_recipe(recipe, None, 0)
    assert not list(tmp_path.iterdir())


def test_a_killed_inspection_leaves_nothing(tmp_path):
    code = "import outrider; outrider.inspect('social_chat')"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        reading = wait_until(lambda: list(tmp_path.glob("outrider-inspect-*/traffic/.parts")), 300)
        process.kill()
    assert reading and process.returncode == -9
    assert wait_until(lambda: not list(tmp_path.iterdir()), 300)
