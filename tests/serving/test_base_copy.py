"""The target's own layer is copied once; a drafter without an embedding is refused."""

import os
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator, served_base
from outrider.serving.vllm_arguments import engine_arguments, start_environment
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors
from outrider.speculators.kinds import trainable_kind_of
from tests.tiny import write_tiny_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tiny_target(tmp_path / "target", layers_in_shards=True)


def test_the_copy_has_the_layer_s_bytes_and_is_made_once(target: Path, tmp_path: Path) -> None:
    copy = served_base(target, target, tmp_path / "cache")
    layout = read_layout(target)
    names = trainable_kind_of(target).native_tensors(layout)
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    with safe_open(copy / "model.safetensors", "pt") as tensors:
        assert set(tensors.keys()) == names
    original = CheckpointTensors(layout)
    for name, tensor in load_file(copy / "model.safetensors").items():
        assert tensor.dtype == original.raw(name).dtype and tensor.equal(original.raw(name))
    assert Speculator.named(copy).kind == Speculator.named(target).kind
    made = (copy / "model.safetensors").stat().st_ino
    assert served_base(target, target, tmp_path / "cache") == copy
    assert (copy / "model.safetensors").stat().st_ino == made, "copied twice"
    other = write_tiny_target(tmp_path / "other", seed=1, layers_in_shards=True)
    assert served_base(other, other, tmp_path / "cache") != copy
    assert served_base(other, target, tmp_path / "cache") == other  # a speculator in use


def test_an_engine_may_take_as_long_as_its_checkpoint_needs(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 671 * 10**9)  # sparse
    assert start_environment(tmp_path) == {"VLLM_ENGINE_READY_TIMEOUT_S": "4255"}


def test_a_drafter_without_an_embedding_is_not_served_over_pipeline_stages(target: Path) -> None:
    config, stages = TargetConfig(model=str(target)), EngineConfig(pipeline_parallel=2)
    assert engine_arguments(config, stages)["pipeline_parallel_size"] == 2
    with pytest.raises(OutriderError, match=r"pipeline_parallel = 2: .*tensor_parallel or data_"):
        engine_arguments(config, stages, Drafting(Speculator.named(target), 1))
