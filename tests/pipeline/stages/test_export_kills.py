"""`kill -9` in an export: the rerun writes the same bundle, and no customer text is left behind.

    python -m pytest tests/pipeline/stages/test_export_kills.py -m slow         # six kills, minutes

The bundle is that of suffix lookup, whose history is customer text. vLLM serves none here:
`export.tolerance` is null. The moments are fractions of an uninterrupted export's time, by seed.
"""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from outrider.common.files import SCRATCH, write_json
from outrider.common.fingerprint import path_digest
from outrider.eval.lookups import history_facts, lookup_folder
from outrider.eval.results.report import SpeculatorIdentity
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.speculator import Speculator
from outrider.speculators.kinds.suffix import SuffixLookup
from outrider.speculators.lookup_history import HISTORY_FILE, EarlierResponse
from tests.eval.sample_results import sample_results
from tests.pipeline.stages.kills import Command, assert_nothing_runs, files_below, stages_script

KILLS = 6

LENGTH = 500
RESPONSES = 6000
"""A history of three million tokens, 24 MB, so that its copies take a while."""


def write_evaluated(run: RunDirectory, nano_r1: Path) -> None:
    """A run whose evaluation is done: its report, and the history that was evaluated."""
    words = [f"target.model={nano_r1}", "speculator.kind=suffix", "export.tolerance=null"]
    recipe = load_recipe("resume_screening", words).recipe
    random_ids = np.random.default_rng(0).integers(0, 4000, (RESPONSES, LENGTH), np.int32)
    responses = [EarlierResponse(ids, f"session {n}") for n, ids in enumerate(random_ids)]
    folder = lookup_folder(run.evaluation, "suffix")
    folder.mkdir(parents=True, mode=0o700)
    SuffixLookup().prepare(responses, folder, max_gb=1.0, shared=True)
    speculator = Speculator("suffix", folder)
    identity = SpeculatorIdentity(
        kind="suffix", weights_sha256=None, history=history_facts(speculator)
    )
    report = run.root / "report.json"
    sample_results().model_copy(update={"speculator": identity}).write(report)
    run.write_resolved(recipe)
    record = {"inputs": {}, "artifact": path_digest(report), "result": {}}
    write_json(run.stage_record("evaluate"), record)


def text_in(run: RunDirectory) -> set[str]:
    """Files and folders of the run's root that have a history."""
    paths = run.root.rglob(HISTORY_FILE)
    return {path.relative_to(run.root).parts[0] for path in paths}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random_moments_an_export_ends_with_the_same_bundle(
    nano_r1: Path, tmp_path: Path
) -> None:
    whole = RunDirectory(tmp_path / "whole" / "run")
    killed = RunDirectory(tmp_path / "killed" / "run")
    write_evaluated(whole, nano_r1)
    shutil.copytree(whole.root, killed.root)

    def command(run: RunDirectory) -> Command:
        words = stages_script(run, ["export"])
        return Command(words, cwd=run.root.parent, scratch=tmp_path / "tmp")

    def began(run: RunDirectory) -> bool:
        return any(run.root.glob(f"{SCRATCH}*"))

    took_s = command(whole).run(lambda: began(whole), whole.stage_record("export").exists)
    expected = files_below(whole.bundle)
    assert HISTORY_FILE in expected

    chance = random.Random(KILLS)
    kills = 0
    left: set[str] = set()
    while kills < KILLS:
        export = command(killed)
        if export.kill(lambda: began(killed), chance.uniform(0, took_s)):
            kills += 1
            assert_nothing_runs(export, killed.root)
            assert not files_below(export.scratch), "text in the folder for temporary files"
            left |= text_in(killed)
            if killed.bundle.exists():  # then it is whole
                bundle_digest(killed.bundle)
        else:  # it finished: start again
            assert files_below(killed.bundle) == expected
            shutil.rmtree(killed.bundle)
            killed.stage_record("export").unlink()
    print(f"{kills} kills, in {took_s:.2f} s; histories were left in {sorted(left)}")
    killed.stage_record("export").unlink(missing_ok=True)
    command(killed).run(lambda: began(killed), killed.stage_record("export").exists)
    assert files_below(killed.bundle) == expected
    assert killed.read_record("export")["result"].keys() == {"bundle", "verification"}
    # Of the evaluation and the bundle; what the killed ones left is gone.
    assert text_in(killed) == {"evaluation", "bundle"}
    assert not list(killed.root.glob(f"{SCRATCH}*")) and not list(killed.root.rglob(".*.tmp"))
    assert not (killed.root / "bundle.unverified").exists()
    history = killed.bundle / HISTORY_FILE
    assert history.stat().st_mode & 0o777 == 0o600
