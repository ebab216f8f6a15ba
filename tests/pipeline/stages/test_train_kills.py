"""`kill -9` of the command in a capture and in a training: the rerun ends with the same bytes.

    python -m pytest tests/pipeline/stages/test_train_kills.py -m slow     # six kills each, an hour

The moments are fractions of an uninterrupted stage's time, by seed: they fall into imports, starts
of engines, shards, checkpoints and passes. OUTRIDER_KILLS is another number of kills.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.common.fingerprint import file_digest
from outrider.data.features.feature_store import FeatureStore
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

KILLS = int(os.environ.get("OUTRIDER_KILLS", "6"))

SMALLEST = (
    "speculator.depth=2",
    "split.max_train_sequences=40",
    "split.max_validation_sequences=8",
    "split.max_heldout_sequences=8",
    "capture.batch_tokens=4096",
    "training.processes=1",
    "training.epochs=2",
    "training.checkpoint_every=1",
)

SMALL_SHARDS = """
import sys
if "outrider.pipeline.runner" in sys.orig_argv and "capture" in sys.orig_argv:
    from outrider.data.config import CaptureConfig
    CaptureConfig.shard_megabytes = 0.5
"""
"""sitecustomize.py of a capture's process: this traffic would be one shard of 256 MB."""


def write_split(folder: Path) -> RunDirectory:
    """A run whose traffic is read and split."""
    words = ("--recipe", "resume_screening", "name=run", "--stages", "ingest,split", *SMALLEST)
    finished = commands.start("train-speculator", *words, cwd=folder, limit_s=600)
    assert finished.returncode == 0, finished.stderr
    return RunDirectory(folder / "runs" / "run")


def shards(run: RunDirectory) -> dict[str, str]:
    """SHA-256 of each shard, as it is on the disk and in the manifest."""
    store = FeatureStore.open(run.features)
    listed = {shard.file: shard.sha256 for shard in store.manifest.shards}
    assert listed == {name: file_digest(run.features / name) for name in listed}
    assert listed.keys() == {path.name for path in run.features.glob("*.safetensors")}
    return listed


def discard(run: RunDirectory, stage: str) -> None:
    """Deletes what a stage wrote, so that the next command starts it from the beginning."""
    folders = {"capture": [run.features], "train": [run.speculator, run.training]}[stage]
    for folder in folders:
        shutil.rmtree(folder)
    run.stage_record(stage).unlink()


class Kills:
    """Kills one stage of a run at random moments, and checks what each kill leaves."""

    def __init__(self, folder: Path, wanted: list[bytes]) -> None:
        self._folder = folder
        self._wanted = wanted
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / "sitecustomize.py").write_text(SMALL_SHARDS)

    def command(self, run: RunDirectory, stage: str) -> Command:
        return Command(
            stages_script(run, [stage]),
            cwd=run.root.parents[1],
            scratch=self._folder / "tmp",
            environment={"PYTHONPATH": str(self._folder / "site")},
        )

    def begins(self, run: RunDirectory, stage: str) -> Callable[[], Any]:
        """The sign that an attempt after the last one has begun."""
        last = run.attempt()
        return lambda: run.attempt() != last and (run.attempt() / f"{stage}.log").exists()

    def run(self, run: RunDirectory, stage: str) -> float:
        """Runs a stage to its end; returns its seconds."""
        command = self.command(run, stage)
        seconds = command.run(self.begins(run, stage), run.stage_record(stage).exists)
        self.check(command, run)
        return seconds

    def kill(self, killed: RunDirectory, whole: RunDirectory, stage: str, took_s: float) -> None:
        """Kills the stage `KILLS` times, and lets it end; compares each end with the whole run's.

        Prints what was on the disk after each kill.
        """
        chance = random.Random(KILLS)
        states: list[str] = []
        while len(states) < KILLS:
            command = self.command(killed, stage)
            if command.kill(self.begins(killed, stage), chance.uniform(0, took_s)):
                self.check(command, killed)
                states.append(progress(killed, stage))
            else:  # it finished: start again
                assert_same_bytes(killed, whole, stage)
                discard(killed, stage)
        self.run(killed, stage)
        assert_same_bytes(killed, whole, stage)
        print(f"{stage}: {took_s:.0f} s; on the disk after each kill: {', '.join(states)}")

    def check(self, command: Command, run: RunDirectory) -> None:
        assert_nothing_runs(command, run.root)
        assert_no_text(run, command.scratch, self._wanted)


def progress(run: RunDirectory, stage: str) -> str:
    """What a killed stage has on the disk, in words."""
    if stage == "capture":
        return f"{len(list(run.features.glob('shard-*')))} shards"
    return f"{len(files_below(run.training))} files of checkpoints"


def assert_same_bytes(killed: RunDirectory, whole: RunDirectory, stage: str) -> None:
    """Equal shards and quarantine, or equal weights."""
    if stage == "capture":
        assert shards(killed) == shards(whole)
        assert not list(killed.features.glob(".*"))
        quarantines = [run.features / "quarantine.json" for run in (killed, whole)]
        assert quarantines[0].read_bytes() == quarantines[1].read_bytes()
    else:
        assert files_below(killed.speculator) == files_below(whole.speculator) != {}


@pytest.mark.timeout(4 * 3600)
def test_killed_at_random_moments_capture_and_training_end_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    whole = write_split(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    killed = RunDirectory(tmp_path / "killed" / "runs" / "run")
    kills = Kills(tmp_path, quotes())

    for stage in ("capture", "train"):
        kills.kill(killed, whole, stage, kills.run(whole, stage))
    assert len(shards(whole)) > 3
    assert not list(killed.root.rglob("*.tmp")) and not list(killed.root.rglob(".scratch-*"))
