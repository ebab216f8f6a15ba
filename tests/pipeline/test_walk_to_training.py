"""The modules between `outrider train` and the first optimizer step, over all processes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from outrider.common.files import write_json
from outrider.common.fingerprint import path_digest
from outrider.pipeline.stages.registry import STAGES
from tests.cli.commands import COMMANDS
from tests.pipeline.test_kinds import captured_run
from tests.test_rooms import ROOT

MOST = 9
"""Modules on the stacks of the command, the stage and the training process together."""

WORDS = (
    "name=run",
    "speculator.kind=eagle3",
    "speculator.base=none",  # no warm start, so no engine compares drafts before the training
    "speculator.depth=2",
    "serving.engine.max_model_len=512",
    "training.scratch_epochs=1",
    "training.processes=1",
    "training.row_tokens=128",
    "training.compute=fp32",
)


def walk(folder: Path) -> list[list[str]]:
    """Trains a tiny head with the installed command; each process's files on the stack."""
    target, run = captured_run(folder)
    for stage in ("split", "capture"):
        digest = path_digest(STAGES[stage].identity(run))
        write_json(run.stage_record(stage), {"artifact": digest, "result": {}})
    stacks = folder / "stacks.jsonl"
    words = ["train", "resume_screening", "--stages", "train", "--runs", folder]
    recorder = {
        "PYTHONPATH": str(ROOT / "tests" / "pipeline" / "stack_recorder"),
        "OUTRIDER_TEST_STACKS": str(stacks),
        "OUTRIDER_TEST_ROOT": str(ROOT),
    }
    finished = subprocess.run(
        [COMMANDS / "outrider", *words, f"target.model={target}", *WORDS],
        cwd=folder,
        env=os.environ | recorder,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert (run.speculator / "model.safetensors").is_file()
    return [json.loads(line) for line in stacks.read_text().splitlines()]


@pytest.mark.slow
def test_few_modules_lead_to_the_first_step_and_the_documents_list_them(tmp_path: Path) -> None:
    command, stage, worker = walk(tmp_path)
    assert command[0] == "cli/main.py" and worker[-1] == "training/trainer.py"
    modules = list(dict.fromkeys([*command, *stage, *worker]))
    assert len(modules) <= MOST, modules
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## From the command to the first step")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", section, flags=re.MULTILINE)
    assert listed == modules
