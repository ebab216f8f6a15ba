"""Checkpoints: the last few are kept, damaged ones skipped, a full disk loses nothing."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator

from outrider.common.errors import OutriderError
from outrider.training import checkpoints
from outrider.training.checkpoints import damage, load_checkpoint, published, save_checkpoint
from tests.training.corpus import make_corpus


class OneFile:
    """Stands in for engine_state.py: one number, and a disk that may be full."""

    def __init__(self) -> None:
        self.number, self.full = 0, False

    def save(self, engine: Any, directory: Path, rank: int, world: int) -> str:
        (directory / "weights").write_text(f"{self.number}")
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "weights"

    def load(self, engine: Any, directory: Path) -> None:
        self.number = int((directory / "weights").read_text())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> OneFile:
    stub = OneFile()
    monkeypatch.setattr(checkpoints, "save_state", stub.save)
    monkeypatch.setattr(checkpoints, "load_state", stub.load)
    return stub


@pytest.fixture
def accelerator() -> Any:
    """The part of an accelerator that checkpoints use, with one process."""
    return SimpleNamespace(
        is_main_process=True,
        process_index=0,
        num_processes=1,
        print=Accelerator(cpu=True).print,
        deepspeed_engine_wrapped=SimpleNamespace(engine=None),
    )


def save(accelerator: Any, engine: OneFile, directory: Path, step: int) -> None:
    engine.number = step
    save_checkpoint(accelerator, directory, step, {"digest": "d", "best_step": 0})


def test_the_last_ones_are_kept_and_the_newest_complete_one_is_loaded(
    accelerator: Any,
    engine: OneFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_checkpoint(accelerator, tmp_path, "d") is None
    for step in (2, 4, 6):
        save(accelerator, engine, tmp_path, step)
    assert [path.name for path in published(tmp_path)] == ["step-0000004", "step-0000006"]
    monkeypatch.setattr(checkpoints, "KEPT", 3)
    save(accelerator, engine, tmp_path, 8)
    names = ["step-0000004", "step-0000006", "step-0000008"]
    assert [path.name for path in published(tmp_path)] == names
    (tmp_path / names[2] / "weights").write_text("9")
    (tmp_path / names[1] / "state.json").unlink()
    (tmp_path / ".step-0000010.draft").mkdir()  # what a killed run was writing
    state = load_checkpoint(accelerator, tmp_path, "d")
    assert state is not None and (state["step"], engine.number) == (4, 4)
    output = capsys.readouterr().out
    assert "step-0000008: weights has changed since it was written; skipped" in output
    assert "state.json: no such file" in output
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000004"]
    assert load_checkpoint(accelerator, tmp_path, "another run's") is None
    assert not tmp_path.exists()


def test_a_disk_that_fills_up_while_writing_leaves_older_checkpoints(
    accelerator: Any, engine: OneFile, tmp_path: Path
) -> None:
    save(accelerator, engine, tmp_path, 2)
    engine.full = True
    with pytest.raises(OutriderError, match="no space left on the disk; free some"):
        save(accelerator, engine, tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000002"]
    assert damage(tmp_path / "step-0000002") is None


def test_a_run_on_a_full_disk_keeps_its_checkpoint_and_resumes(
    small_disk: Path, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus", train_sequences=8, validation_sequences=2)
    ballast = small_disk / "others_use_it_too"
    ballast.write_bytes(bytes(4_300_000))
    settings = {"epochs": 6, "checkpoint_every": 1, "evaluate_every": 100}
    with pytest.raises(OutriderError, match="no space left on the disk"):
        corpus.train(small_disk, **settings)
    left = published(small_disk / "training" / "checkpoints")
    assert left and all(damage(path) is None for path in left)
    newest = json.loads((left[-1] / "state.json").read_text())["step"]
    ballast.unlink()
    result = corpus.train(small_disk, **settings)
    assert result["stopped_at"] == result["steps"] > newest
