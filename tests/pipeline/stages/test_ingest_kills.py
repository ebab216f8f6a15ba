"""`kill -9` in ingest and split: the rerun writes the same bytes, and no raw text is left.

    python -m pytest tests/pipeline/stages/test_ingest_kills.py -m slow     # twelve kills, minutes

The log has the halves of exchanges in rows of their own, so that raw rows go through a scratch
file, and `privacy.mode: surrogate`. The moments are fractions of an uninterrupted run's time, by
seed.
"""

import copy
import random
from pathlib import Path

import pytest
import yaml

from outrider.common.files import SCRATCH
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from tests.data.logs import pair, screenings, write_log
from tests.pipeline.stages.kills import Command, assert_nothing_runs, files_below, stages_script

KILLS = 12
ROWS = 400
PRIVATE = b"lovelace"

pytestmark = [pytest.mark.attack("kills"), pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def recipe_file(nano_r1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    rows = []
    for index, (messages, reasoning, answer) in enumerate(screenings(ROWS)):
        asked = copy.deepcopy(messages)
        asked[-1]["content"] += f"\nReply to ada.{index}@lovelace-labs.org"
        rows.append(
            pair(
                asked,
                reasoning,
                answer,
                request__metadata__session_id=f"s-{index}",
                response__created=1_700_000_000 + 60 * index,
                response__id=f"c-{index}",
            )
        )
    write_log(folder / "log.jsonl", rows)
    recipe = {
        "target": {"model": str(nano_r1)},
        "traffic": {"path": str(folder / "log.jsonl")},
        "privacy": {"mode": "surrogate", "key_file": str(folder / "key")},
        "split": {"near_duplicate_similarity": 1.0},
    }
    (folder / "key").write_bytes(b"k" * 32)
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "mine.yaml"


def write_run(folder: Path, recipe_file: Path) -> RunDirectory:
    run = RunDirectory(folder / "run")
    run.write_resolved(load_recipe(str(recipe_file)).recipe)
    return run


def command_of(run: RunDirectory, scratch: Path) -> Command:
    return Command(stages_script(run, ["ingest", "split"]), cwd=run.root.parent, scratch=scratch)


def began(run: RunDirectory) -> bool:
    return (run.root / "stages" / "ingest.started.json").exists()


def results(run: RunDirectory) -> dict[str, bytes]:
    """Sequences and parts, which training reads."""
    files = files_below(run.sequences) | files_below(run.split)
    return {name: data for name, data in files.items() if not name.startswith(".")}


@pytest.fixture(scope="module")
def whole(
    recipe_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[float, dict[str, bytes]]:
    """The seconds of an uninterrupted run, and what it wrote."""
    folder = tmp_path_factory.mktemp("whole")
    run = write_run(folder, recipe_file)
    command = command_of(run, folder / "tmp")
    took_s = command.run(lambda: began(run), run.stage_record("split").exists)
    assert "parts.json" in results(run)
    return took_s, results(run)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_run_goes_on(
    recipe_file: Path, whole: tuple[float, dict[str, bytes]], tmp_path: Path, seed: int
) -> None:
    took_s, expected = whole
    run = write_run(tmp_path, recipe_file)
    command = command_of(run, tmp_path / "tmp")
    # Strata, so that the twelve moments are spread over the whole run.
    moment = (seed + random.Random(seed).random()) / KILLS
    if command.kill(lambda: began(run), moment * took_s):
        assert_nothing_runs(command, run.root)
        outside = {
            name
            for name, data in files_below(run.root).items()
            if PRIVATE in data and not name.startswith("traffic/")
        }
        assert not outside
        assert not files_below(command.scratch)
        command.run(lambda: began(run), run.stage_record("split").exists)
    assert results(run) == expected
    for name, data in files_below(run.root).items():
        assert PRIVATE not in data, name
        assert SCRATCH not in name
