"""Checkpoints: file format, torn files, full disks, versions of DeepSpeed."""

import errno
import json
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.utils.tensor_fragment import fragment_address
from safetensors.torch import save_file
from torch import nn

from outrider.common.errors import OutriderError
from outrider.training.checkpointing import free_space as disk
from outrider.training.checkpointing.checkpoints import (
    load_checkpoint,
    published,
    random_state,
    save_checkpoint,
    set_random_state,
)
from outrider.training.checkpointing.deepspeed_hooks import (
    FOLDER,
    WRITTEN_FOR,
    convert_to_universal,
    use_safetensors,
)
from outrider.training.checkpointing.manifest import MANIFEST, file_digests, torn, write_manifest
from outrider.training.checkpointing.safetensors_state import read_state, write_state
from tests.training.corpus import Corpus, make_corpus


def test_a_state_is_read_back_as_it_was(tmp_path: Path) -> None:
    flat = torch.arange(6.0)
    state = {
        "step": 3,
        "nothing": None,
        "flags": [True, 1.5, float("inf"), "text"],
        "moments": {
            0: {"exp_avg": flat[:4], "step": torch.tensor(7.0)},
            1: flat[4:],
        },  # views of one buffer
        "low": torch.randn(3, 2).bfloat16().t(),
        "empty": torch.empty(0),
        "shapes": OrderedDict(b=torch.Size([2, 3]), a=torch.Size([])),
        "betas": (0.9, 0.95),
        "dtype": torch.bfloat16,
        "scaler": LossScaler(scale=2.0),
        "slices": [OrderedDict(w=fragment_address(numel=4, start=2))],
    }
    write_state(tmp_path / "state.safetensors", state)
    found = read_state(tmp_path / "state.safetensors")
    assert found.keys() == state.keys()
    assert (
        list(found["shapes"].items()) == list(state["shapes"].items())
        and type(found["shapes"]) is OrderedDict
    )
    assert type(found["shapes"]["b"]) is torch.Size
    for name in ("step", "nothing", "flags", "betas", "dtype", "slices"):
        assert found[name] == state[name] and type(found[name]) is type(state[name])
    assert type(found["scaler"]) is LossScaler and found["scaler"].loss_scale == 2.0
    assert torch.equal(found["moments"][0]["exp_avg"], flat[:4]) and torch.equal(
        found["moments"][1], flat[4:]
    )
    assert found["moments"][0]["step"].item() == 7.0
    assert found["low"].dtype == torch.bfloat16 and torch.equal(found["low"], state["low"])
    assert found["empty"].shape == (0,)


def test_a_state_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"state\.optimizer\.0: a types\.SimpleNamespace cannot be written"
    ):
        write_state(
            tmp_path / "state.safetensors", {"optimizer": [SimpleNamespace(run="anything")]}
        )
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(OutriderError, match="no checkpoint of Outrider's"):
        read_state(tmp_path / "other.safetensors")


def test_random_generators_resume_exactly(tmp_path: Path) -> None:
    import random

    def draw() -> tuple:
        return (
            random.random(),
            random.gauss(),
            np.random.rand(),
            np.random.randn(),
            torch.rand(2).tolist(),
        )

    draw()
    write_state(tmp_path / "random.safetensors", random_state())
    expected = draw()
    assert draw() != expected
    set_random_state(read_state(tmp_path / "random.safetensors"))
    assert draw() == expected


def damage_content(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "has changed": damage_content,
    "bytes instead of": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "is missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_damage_to_any_file_is_detected(problem: str, tmp_path: Path) -> None:
    names = ["state.json", "deepspeed/a.safetensors", "deepspeed/b.safetensors"]
    (tmp_path / "whole" / "deepspeed").mkdir(parents=True)
    for name in names:
        (tmp_path / "whole" / name).write_text(f"the content of {name}")
    shares = [file_digests(tmp_path / "whole", rank, 2) for rank in range(2)]
    write_manifest(tmp_path / "whole", shares[0] | shares[1])
    assert [torn(tmp_path / "whole", rank, 2) for rank in range(2)] == [None, None]
    for name in names:
        copy = shutil.copytree(tmp_path / "whole", tmp_path / name.replace("/", "-"))
        DAMAGE[problem](copy / name)
        found = [torn(copy, rank, 2) for rank in range(2)]
        assert [each for each in found if each and name in each and problem in each], found
    (tmp_path / "whole" / MANIFEST).write_text("{")
    assert torn(tmp_path / "whole") == f"{MANIFEST} is missing or damaged"


def test_the_hooks_are_written_for_the_installed_deepspeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert deepspeed.__version__.split("+")[0] == WRITTEN_FOR
    monkeypatch.setattr(deepspeed, "__version__", "0.20.1")
    with pytest.raises(
        OutriderError,
        match=rf"deepspeed 0.20.1 is installed; .*pip install deepspeed=={WRITTEN_FOR}",
    ):
        use_safetensors(SimpleNamespace())


class RunsCode:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_no_code_in_a_pickle_runs_while_a_checkpoint_is_converted(tmp_path: Path) -> None:
    source = tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": RunsCode(tmp_path / "ran")}, source)
    with pytest.raises(pickle.UnpicklingError, match=r"Weights only load failed"):
        convert_to_universal(tmp_path, tmp_path / "universal", zero_stage=1)
    assert not (tmp_path / "ran").exists()
    torch.load(source, weights_only=False)
    assert (tmp_path / "ran").exists(), "the pickle is harmless: the test shows nothing"


class OneLayer:
    """Stands in for DeepSpeed's engine: one weight, and a disk that may be full."""

    def __init__(self) -> None:
        self.module = nn.Linear(2, 1, bias=False)
        self.checkpoint_engine = SimpleNamespace(failure=None)
        self.full_at: int | None = None
        self.saved = 0

    def save_checkpoint(self, directory: str, tag: str, save_latest: bool) -> None:
        self.saved += 1
        (Path(directory) / tag).mkdir()
        save_file(
            {"weight": self.module.weight.detach().clone()},
            Path(directory) / tag / "weights.safetensors",
        )
        full = self.saved == self.full_at
        self.checkpoint_engine.failure = (
            OSError(errno.ENOSPC, "No space left on device") if full else None
        )

    def load_checkpoint(self, directory: str, tag: str) -> tuple:
        from safetensors.torch import load_file

        self.module.weight.data.copy_(
            load_file(Path(directory) / tag / "weights.safetensors")["weight"]
        )
        return directory, {}


@pytest.fixture
def accelerator() -> Any:
    """The part of an accelerator that checkpoints use, with one process."""
    real = Accelerator(cpu=True)
    return SimpleNamespace(
        is_main_process=True,
        process_index=0,
        num_processes=1,
        print=real.print,
        wait_for_everyone=lambda: None,
        deepspeed_engine_wrapped=SimpleNamespace(engine=OneLayer()),
    )


def save(accelerator: Any, directory: Path, step: int, keep: int = 2) -> None:
    accelerator.deepspeed_engine_wrapped.engine.module.weight.data.fill_(step)
    save_checkpoint(accelerator, directory, step, {"digest": "d", "best_step": 0}, keep)


def weight(accelerator: Any) -> float:
    return accelerator.deepspeed_engine_wrapped.engine.module.weight[0, 0].item()


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_last_ones_are_kept_and_the_newest_complete_one_is_loaded(
    accelerator: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_checkpoint(accelerator, tmp_path, "d") is None
    for step in (2, 4, 6, 8):
        save(accelerator, tmp_path, step, keep=3)
    assert [path.name for path in published(tmp_path)] == [
        "step-0000004",
        "step-0000006",
        "step-0000008",
    ]
    assert load_checkpoint(accelerator, tmp_path, "d")["step"] == 8
    damage_content(tmp_path / "step-0000008" / FOLDER / "weights.safetensors")
    (tmp_path / "step-0000006" / "state.json").unlink()
    (tmp_path / ".step-0000010.draft").mkdir()  # what a killed run was writing
    state = load_checkpoint(accelerator, tmp_path, "d")
    assert (state["step"], weight(accelerator)) == (4, 4.0)
    output = capsys.readouterr().out
    assert (
        "step-0000008: deepspeed/weights.safetensors has changed since it was written; skipped"
        in output
    )
    assert "step-0000006: state.json is missing; skipped" in output
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000004"]


def test_checkpoints_of_other_settings_are_removed(accelerator: Any, tmp_path: Path) -> None:
    save(accelerator, tmp_path / "checkpoints", 2)
    assert load_checkpoint(accelerator, tmp_path / "checkpoints", "other") is None
    assert not (tmp_path / "checkpoints").exists()


def test_a_full_disk_stops_the_run_before_anything_is_written(
    accelerator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4):
        save(accelerator, tmp_path, step)
    before = content(tmp_path)
    needed = disk.checkpoint_bytes(accelerator.deepspeed_engine_wrapped.engine.module, processes=1)
    assert needed >= sum(
        len(file) for name, file in before.items() if name.startswith("step-0000004")
    )
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(
        OutriderError,
        match=r"a checkpoint needs 1.05 MB and the disk has 1.05 MB free. Nothing was written",
    ):
        save(accelerator, tmp_path, 6)
    assert content(tmp_path) == before
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    save(accelerator, tmp_path, 6)
    assert len(published(tmp_path)) == 2


def test_a_disk_that_fills_up_while_writing_leaves_older_checkpoints(
    accelerator: Any, tmp_path: Path
) -> None:
    for step in (2, 4):
        save(accelerator, tmp_path, step)
    before = content(tmp_path)
    accelerator.deepspeed_engine_wrapped.engine.full_at = 3
    with pytest.raises(
        OutriderError, match="no space left on the disk; free some and run the same command again"
    ):
        save(accelerator, tmp_path, 6)
    assert content(tmp_path) == before
    assert load_checkpoint(accelerator, tmp_path, "d")["step"] == 4


def test_a_run_on_a_full_disk_keeps_its_checkpoint_and_resumes(
    small_disk: Path, tmp_path: Path
) -> None:
    corpus: Corpus = make_corpus(tmp_path / "corpus", train_sequences=8, validation_sequences=2)
    ballast = small_disk / "others_use_it_too"
    ballast.write_bytes(bytes(1_200_000))
    settings = {"epochs": 6, "checkpoint_every": 1, "evaluate_every": 100, "keep_checkpoints": 4}
    with pytest.raises(
        OutriderError, match=r"checkpoints: a checkpoint needs .* Nothing was written"
    ):
        corpus.train(small_disk, **settings)
    left = published(small_disk / "training" / "checkpoints")
    assert left and all(torn(path) is None for path in left)
    newest = json.loads((left[-1] / "state.json").read_text())["step"]
    ballast.unlink()
    result = corpus.train(small_disk, **settings | {"keep_checkpoints": 1})
    assert result["stopped_at"] == result["steps"] > newest
