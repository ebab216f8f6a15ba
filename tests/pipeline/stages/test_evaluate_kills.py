"""`kill -9` in an evaluation: the rerun continues, and ends with the same replay and bundle.

    python -m pytest tests/pipeline/stages/test_evaluate_kills.py -m slow      # six kills, an hour

The moments are fractions of an uninterrupted evaluation's time, by seed: they fall into imports,
replays, starts of engines, and passes of requests.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider.eval.results.report import Report
from outrider.pipeline.run_dir import RunDirectory
from tests.cli import commands
from tests.pipeline.stages.kills import (
    Command,
    assert_no_text,
    assert_nothing_runs,
    files_below,
    quotes,
    stages_script,
)

pytestmark = [pytest.mark.slow, pytest.mark.engine]

KILLS = 6

SMALLEST = (
    "speculator.depth=2",
    "split.max_train_sequences=40",
    "split.max_validation_sequences=8",
    "split.max_heldout_sequences=8",
    "training.processes=1",
    "training.epochs=1",
    "eval.engine_modes=[eager]",
    "eval.measure=full",
    "eval.repeats=2",
    "eval.k=2",
    "eval.task=null",
    "eval.lookup=ngram",
    "eval.concurrency=[1]",
    "eval.verification_requests=4",
    "eval.verification_max_tokens=32",
    "eval.max_tokens=32",
    "export.k_per_batch_size=false",
    "export.tolerance=null",
)
"""K is given, since a choice by measured times may differ. The export starts no server."""

GROWING = "speed_eager_repeats.json"
"""The pass whose file is written after every repeat."""


def write_trained(folder: Path) -> RunDirectory:
    """A run whose training is done."""
    stages = ("--stages", "ingest,split,capture,train")
    words = ("--recipe", "resume_screening", "name=run", *stages, *SMALLEST)
    # Two starts of an engine and a training: 7 min on two slow cores.
    finished = commands.start("train-speculator", *words, cwd=folder, limit_s=3600)
    assert finished.returncode == 0, finished.stderr
    return RunDirectory(folder / "runs" / "run")


def passes(run: RunDirectory) -> dict[str, int]:
    """Inode of each finished pass's file: a pass that is repeated publishes another file."""
    steps = (run.evaluation / "steps").glob("*.json")
    return {path.name: path.stat().st_ino for path in steps if path.name != GROWING}


def repeats(run: RunDirectory) -> list[dict[str, Any]]:
    """Blocks of the finished repeats."""
    path = run.evaluation / "steps" / GROWING
    return json.loads(path.read_text())["result"] if path.exists() else []


def replayed(run: RunDirectory) -> dict[str, Any]:
    """The sums of every replay, without its time."""
    paths = sorted((run.evaluation / "steps").glob("replay_*.json"))
    return {path.name: json.loads(path.read_text())["result"]["sums"] for path in paths}


def exact_part(report: Report) -> dict[str, Any]:
    """The replay without what depends on the lookup's own K, which is chosen by measured times."""
    assert report.replay is not None
    values = report.replay.model_dump(exclude={"lookups", "cumulative"})
    shares = report.replay.cumulative
    return values | {name: shares[name] for name in ("base", "custom", "ceiling")}


def discard_evaluation(run: RunDirectory) -> None:
    """Deletes the evaluation, so that the next one starts from the beginning."""
    shutil.rmtree(run.evaluation)
    run.stage_record("evaluate").unlink()
    (run.root / "report.json").unlink()


def assert_same_end(expected: RunDirectory, found: RunDirectory) -> None:
    """Equal replay, and equal bundles but for what was measured in seconds."""
    assert replayed(found) == replayed(expected) != {}
    reports = [Report.read(run.root / "report.json") for run in (expected, found)]
    assert exact_part(reports[0]) == exact_part(reports[1])
    assert reports[0].acceptance_ratio == reports[1].acceptance_ratio
    bundles = [files_below(run.bundle) for run in (expected, found)]
    manifests = [json.loads(files.pop("bundle.json")) for files in bundles]
    assert bundles[0] == bundles[1]
    for manifest in manifests:
        # The digest of the report, and its speeds and verdict.
        del manifest["evidence"]
    assert manifests[0] == manifests[1]


@pytest.mark.timeout(4 * 3600)
def test_killed_at_random_moments_an_evaluation_ends_with_the_same_replay_and_bundle(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    whole = write_trained(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    killed = RunDirectory(tmp_path / "killed" / "runs" / "run")
    wanted = quotes()

    def command(run: RunDirectory, *stages: str) -> Command:
        words = stages_script(run, stages)
        return Command(words, cwd=run.root.parents[1], scratch=tmp_path / "tmp")

    def begins(run: RunDirectory) -> Any:
        """The sign that an attempt after the last one has begun."""
        last = run.attempt()
        return lambda: run.attempt() != last and (run.attempt() / "evaluate.log").exists()

    took_s = command(whole, "evaluate").run(begins(whole), whole.stage_record("evaluate").exists)
    chance = random.Random(KILLS)
    kills = 0
    before: dict[str, int] = {}
    repeated: list[dict[str, Any]] = []
    while kills < KILLS:
        evaluation = command(killed, "evaluate")
        is_killed = evaluation.kill(begins(killed), chance.uniform(0, took_s))
        assert_nothing_runs(evaluation, killed.root)
        assert_no_text(killed, evaluation.scratch, wanted)
        after = passes(killed)
        assert before.items() <= after.items(), "a finished pass was repeated"
        assert repeats(killed)[: len(repeated)] == repeated, "a finished repeat was measured again"
        if is_killed:
            kills += 1
            before = after
            repeated = repeats(killed)
        else:  # it finished: start again
            discard_evaluation(killed)
            before = {}
            repeated = []
    for run in (whole, killed):
        last = command(run, "evaluate", "export")
        last.run(begins(run), run.stage_record("export").exists)
        assert_nothing_runs(last, run.root)
    assert before.items() <= passes(killed).items()
    assert repeats(killed)[: len(repeated)] == repeated
    assert_same_end(whole, killed)
    assert_no_text(killed, tmp_path / "tmp", wanted)
    assert not list(killed.root.rglob(".scratch-*"))
