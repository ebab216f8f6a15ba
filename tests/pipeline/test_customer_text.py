"""Customer text stays in the log, in traffic/ and in features/.

The command runs on a log with a canary in every field, well formed and malformed. No canary may
appear in a message, a log or any other artifact.
"""

import copy
import json
import os
import stat
import subprocess
import sys

import pytest
import yaml

from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import WITHHELD
from tests.cli import commands
from tests.data.logs import pair, screenings, write_log

CANARY = "Kanarienvogel"
LABELS = ("model", "tenant", "route", "role")
"""Names that summaries list, not text: a model's, a tenant's, a route's."""


def good_rows(count=30):
    """Conversations with a canary in every text of request and response."""
    tool = {
        "type": "function",
        "function": {"name": f"{CANARY}_lookup", "description": f"for {CANARY}", "parameters": {}},
    }
    for index, (messages, reasoning, answer) in enumerate(screenings(count)):
        last = {
            **messages[-1],
            "content": f"{messages[-1]['content']}\n{CANARY} {index}",
            "name": CANARY,
        }
        yield pair(
            [{"role": "system", "content": f"{CANARY} is the customer"}, *messages[:-1], last],
            f"{reasoning} {CANARY}",
            f"{answer} {CANARY}",
            request__metadata={"session_id": f"{CANARY}-{index}", "note": CANARY, CANARY: 1},
            request__user=CANARY,
            request__tools=[tool],
            request__chat_template_kwargs={CANARY: CANARY},
            response__created=1_700_000_000 + 60 * index,
            response__id=f"chatcmpl-{CANARY}",
            response__system_fingerprint=CANARY,
        )


def leaves(value, path=()):
    """The path of every value in a JSON value."""
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inner:
        yield from leaves(one, (*path, key))


def malformed_rows():
    """Rows with a canary in place of each value, of right and wrong types; malformed rows."""
    whole = next(good_rows(1))
    whole["response"]["usage"] = {"completion_tokens": 5}
    whole["response"]["choices"][0] |= {"token_ids": [5, 6], "logprobs": None}
    whole["response"]["prompt_token_ids"] = [0, 7]
    for *parents, last in (path for path in leaves(whole) if path):
        if last in LABELS:
            continue
        for canary in (CANARY, [CANARY], {CANARY: CANARY}, None):
            row = copy.deepcopy(whole)
            holder = row
            for parent in parents:
                holder = holder[parent]
            holder[last] = canary
            yield row
    text = json.dumps(whole).encode()
    asked = [{"role": "user", "content": CANARY}]
    yield from (
        text[:-40],
        text + b"}",
        text.replace(b"{", b"[", 1),
        b"\xff" + text,
        f'"{CANARY}"'.encode(),
        CANARY.encode(),
        b'{"request": {"%s": %s}, "response": {}}' % (CANARY.encode(), b"[" * 3000 + b"]" * 3000),
        {"request": {"messages": [{**asked[0], "content": f"{CANARY}\ud83d"}]}, "response": {}},
        {"request": whole["request"], "response": {"error": {"message": CANARY, "code": CANARY}}},
        pair([{"role": "user", "content": None, "extra": CANARY}], CANARY, CANARY),
        pair(asked, CANARY, CANARY, request__chat_template=f"{{{{ {CANARY}() }}}}"),
        pair(asked, CANARY * 3000, CANARY),
        {CANARY: CANARY},
    )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, nano_r1):
    folder = tmp_path_factory.mktemp("canaries")
    write_log(folder / "log.jsonl", [*good_rows(), *malformed_rows()])
    write_log(folder / "hopeless.jsonl", list(malformed_rows()))
    recipe = {
        "target": {"model": str(nano_r1)},
        "traffic": {"path": "log.jsonl", "max_reject_fraction": 0.99},
        "split": {"near_duplicate_similarity": 1.0},
        "privacy": {"mode": "report"},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def run(folder, *words):
    return commands.run("train-speculator", "--recipe", "mine.yaml", *words, cwd=folder)


def assert_no_canary(finished, run_dir):
    assert CANARY not in finished.stderr + finished.stdout
    looked_at = set()
    for path in run_dir.rglob("*"):
        inside = path.relative_to(run_dir)
        assert CANARY not in str(inside)
        private = inside.parts[0] in ("traffic", "features") and path.name not in (
            "rejects.jsonl",
            "summary.json",
        )
        if path.is_file() and not private:
            looked_at.add(str(inside))
            assert CANARY.encode() not in path.read_bytes(), inside
    return looked_at


def test_a_log_full_of_canaries_leaves_none_outside_traffic(workplace):
    previous = os.umask(0o022)
    try:
        finished = run(workplace, "--stages", "ingest,split", "name=whole")
    finally:
        os.umask(previous)
    assert finished.returncode == 0, finished.stderr
    run_dir = workplace / "runs" / "whole"
    assert {
        "traffic/rejects.jsonl",
        "split/parts.json",
        "stages/ingest.json",
        "logs/attempt_1/ingest.log",
    } <= assert_no_canary(finished, run_dir)
    counted = json.loads((run_dir / "stages" / "ingest.json").read_text())["result"]
    assert counted["exchanges"] > 30 and sum(counted["rejects"].values()) > 50
    held = [
        path
        for path in (run_dir / "traffic").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert held, "the table itself holds what it was made from, or this test looks at nothing"
    mode = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run_dir.rglob("*")}
    assert mode["attempt_1"] == mode["traffic"] == mode["sequences"] == 0o700
    assert mode["ingest.log"] == mode["rejects.jsonl"] == mode["recipe.resolved.yaml"] == 0o600
    assert mode["provenance.json"] == 0o600
    assert {path.stat().st_mode & 0o777 for path in held} == {0o600}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["traffic.max_reject_fraction=0.05"], "max_reject_fraction"),
        pytest.param(
            ["traffic.path=hopeless.jsonl", "traffic.model=x"],
            "no usable row",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_about_the_log_quotes_nothing_of_it(workplace, tmp_path, words, message):
    finished = run(workplace, "--stages", "ingest", "--runs", str(tmp_path), *words)
    assert finished.returncode == 1 and message in finished.stderr
    assert assert_no_canary(finished, tmp_path / "mine")


BROKEN = """
import dataclasses
import sys
from pathlib import Path
import outrider.pipeline.runner as stage
from outrider.pipeline.run_dir import RunDirectory
def work(run, recipe, options):
    try:
        int("Kanarienvogel")
    except ValueError as error:
        raise KeyError("Kanarienvogel") from error
directory = RunDirectory(Path(sys.argv[2]))
broken = stage.stage_of(sys.argv[1], directory.read_resolved())
sys.exit(stage.main(dataclasses.replace(broken, work=work), directory, {}))
"""


@pytest.mark.parametrize(
    ("stage", "samples", "quotes"),
    [
        ("ingest", False, False),
        ("evaluate", False, False),
        ("ingest", True, True),
        ("train", False, True),
    ],
)
def test_an_unexpected_error_is_logged_without_its_message_unless_samples_are_allowed(
    tmp_path, stage, samples, quotes
):
    loaded = load_recipe("resume_screening", [f"report.samples={str(samples).lower()}"])
    directory = RunDirectory.of(loaded.recipe, tmp_path)
    directory.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
    finished = subprocess.run(
        [sys.executable, "-c", BROKEN, stage, str(directory.root)], capture_output=True, text=True
    )
    assert finished.returncode == 70
    assert (
        "in perform" in finished.stderr
        and "ValueError: " in finished.stderr
        and "KeyError: " in finished.stderr
    )
    assert (CANARY in finished.stderr) == quotes and (WITHHELD in finished.stderr) != quotes
