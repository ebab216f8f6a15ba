"""Checkpoints: the last two are kept, drafts are removed, a full disk loses nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator

from outrider.common.errors import OutriderError
from outrider.training import checkpoints
from outrider.training.checkpoints import (
    load_checkpoint,
    newest_state,
    published_checkpoints,
    save_checkpoint,
)
from tests.training.corpus import make_corpus

PROFILE = {"sequences": 1, "tokens": 1.0, "acceptance_length": [1.0], "acceptance": [0.0]}
STATE = {
    **dict.fromkeys(("base", "best", "latest"), PROFILE),
    **dict.fromkeys(("started_over", "evaluated_at", "start_peak_bytes"), 0),
    "refit": False,
}


def test_the_last_two_are_kept_and_the_newest_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr(checkpoints, "save_state", lambda *_: None)
    monkeypatch.setattr(checkpoints, "load_state", lambda _, directory: loaded.append(directory))
    accelerator: Any = SimpleNamespace(
        is_main_process=True,
        process_index=0,
        num_processes=1,
        print=Accelerator(cpu=True).print,
        deepspeed_engine_wrapped=SimpleNamespace(engine=None),
    )
    assert newest_state(accelerator, tmp_path, "d") is None
    for step in (2, 4, 6):
        save_checkpoint(accelerator, tmp_path, step, {**STATE, "digest": "d", "best_step": 0})
    names = ["step-0000004", "step-0000006"]
    assert [path.name for path in published_checkpoints(tmp_path)] == names
    (tmp_path / ".step-0000010.draft").mkdir()  # what a killed run was writing
    state = newest_state(accelerator, tmp_path, "d")
    assert state is not None and state["step"] == 6
    load_checkpoint(accelerator, tmp_path, 6)
    assert loaded == [tmp_path / names[1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert newest_state(accelerator, tmp_path, "another run's") is None
    assert not tmp_path.exists()


def test_a_run_on_a_full_disk_keeps_its_checkpoint_and_resumes(
    small_disk: Path, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus", train_sequences=8, validation_sequences=2)
    ballast = small_disk / "others_use_it_too"
    ballast.write_bytes(bytes(4_300_000))
    settings = {"epochs": 6, "checkpoint_every": 1, "evaluate_every": 100}
    with pytest.raises(OutriderError, match="no space left on the disk"):
        corpus.train(small_disk, **settings)
    newest = published_checkpoints(small_disk / "training" / "checkpoints")[-1]
    step = json.loads((newest / "state.json").read_text())["step"]
    ballast.unlink()
    result = corpus.train(small_disk, **settings)
    assert result["stopped_at"] == result["steps"] > step
