"""The number of processes on this machine's GPUs, which are stubbed."""

from pathlib import Path

import pytest
import torch

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import set_training_environment
from outrider.training.distributed.launch import processes_here
from outrider.training.distributed.spec import TrainingSpec
from tests.training.corpus import make_corpus


@pytest.mark.parametrize(
    ("gpus", "processes", "expected"),
    [(0, 2, 2), (1, 1, 1), (1, 2, 1), (2, 2, 2), (2, 8, 2), (8, 2, 2), (8, 8, 8)],
)
def test_at_most_one_process_per_gpu(monkeypatch, gpus: int, processes: int, expected: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert processes_here(TrainingConfig(processes=processes), ClusterConfig()) == expected


def test_a_launcher_or_a_cluster_places_the_processes_itself(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    by_launcher = TrainingConfig(processes=16, launcher="srun worker")
    assert processes_here(by_launcher, ClusterConfig()) == 16
    by_ray = ClusterConfig(address="head:6379")
    assert processes_here(TrainingConfig(processes=16), by_ray) == 16


def test_the_same_run_may_have_more_processes_on_another_machine(
    tmp_path: Path, monkeypatch
) -> None:
    """Two ranks on one GPU fail in NCCL, after the capture."""
    corpus = make_corpus(tmp_path / "corpus", train_sequences=4, validation_sequences=2)
    specs = []
    for gpus in (1, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        corpus.train(tmp_path / f"{gpus}", processes=2, epochs=1)
        text = (tmp_path / f"{gpus}" / "training" / "spec.json").read_text()
        specs.append(TrainingSpec.model_validate_json(text))
    assert [spec.training.processes for spec in specs] == [1, 2]
    assert specs[0].settings() == specs[1].settings()


@pytest.mark.parametrize(("rank", "gpus"), [(1, 1), (7, 4)])
def test_a_process_must_see_the_gpu_of_its_rank(monkeypatch, rank: int, gpus: int) -> None:
    """As under srun with --gpus-per-task, where each process sees one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "")  # restored afterwards
    with pytest.raises(OutriderError, match=f"^LOCAL_RANK = {rank}, but .* sees {gpus} .*srun"):
        set_training_environment()
