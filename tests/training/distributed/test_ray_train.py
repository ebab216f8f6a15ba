"""Training by Ray Train on a cluster of three raylets: weights, lost ranks and nodes, signals.

python -m pytest tests/training/distributed/test_ray_train.py -m slow       # minutes
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.training.distributed.spec import WORKER, Preempted
from tests.cluster_nodes import LocalNodes, local_nodes
from tests.training.corpus import Corpus, make_corpus
from tests.training.distributed.test_kills import assert_same_end
from tests.training.store_worker import STORE_WORKER
from tests.training.test_trainer import metrics, once_at_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LONG = {"epochs": 20, "checkpoint_every": 5, "evaluate_every": 30}
"""60 steps of two rows."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with local_nodes() as running:
        running.add()
        running.add()
        yield running


def run(
    corpus: Corpus,
    run_dir: Path,
    nodes: LocalNodes | None,
    store: str | None = None,
    **settings: object,
) -> dict:
    """Trains two processes, on the cluster or under torchrun."""
    return corpus.train(
        run_dir,
        store=store,
        launch=True,
        cluster=ClusterConfig(address=nodes.address) if nodes else None,
        **{"processes": 2, "parity": "warn", "learning_rate": 5e-4} | settings,
    )


@pytest.fixture(scope="module")
def whole(corpus: Corpus, nodes: LocalNodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the cluster that nothing disturbs."""
    run_dir = tmp_path_factory.mktemp("whole")
    run(corpus, run_dir, nodes, **LONG)
    return run_dir


def ranks(run_dir: Path) -> list[psutil.Process]:
    """The living ranks of a run, by number."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if {WORKER, STORE_WORKER} & {*words} and str(run_dir) in words[-1]:
            with contextlib.suppress(psutil.NoSuchProcess, KeyError):  # it has just ended
                found[process.environ()["RANK"]] = process
    return [found[number] for number in sorted(found)]


def test_weights_and_log_are_torchruns(corpus: Corpus, whole: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path, None, **LONG)
    assert_same_end(tmp_path, whole)
    assert not ranks(tmp_path)
    log = (whole / "logs" / "train.log").read_text()
    assert "step 60/60" in log and not list((whole / "logs").glob("train.rank*"))


def test_a_killed_rank_starts_again_and_the_weights_are_the_same(
    corpus: Corpus,
    whole: Path,
    nodes: LocalNodes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with once_at_step(tmp_path, 23, lambda: ranks(tmp_path)[1].kill()):
        run(corpus, tmp_path, nodes, **LONG)
    assert_same_end(whole, tmp_path)
    printed = capfd.readouterr().out
    assert "training lost processes, or has room for more; it resumes with 2" in printed
    assert "Traceback" not in printed


def test_sigterm_writes_a_checkpoint_and_the_same_command_goes_on(
    corpus: Corpus, whole: Path, nodes: LocalNodes, tmp_path: Path
) -> None:
    with (
        once_at_step(tmp_path, 17, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Preempted, match=r"step \d+ of 60 is saved") as stopped,
    ):
        run(corpus, tmp_path, nodes, **LONG)
    assert stopped.value.exit_code == 75
    newest = sorted((tmp_path / "training" / "checkpoints").glob("step-*"))[-1]
    assert 17 <= int(newest.name.removeprefix("step-")) < 60
    assert not ranks(tmp_path)
    run(corpus, tmp_path, nodes, **LONG)
    assert_same_end(whole, tmp_path)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("MistakeInRank1", r"^rank 1: features/shard-00003.*capture again$"),
        ("BugInRank1", r"^rank 1: RuntimeError: a kernel failed; its trace"),
    ],
)
def test_an_error_of_rank_1_is_one_message_and_not_tried_again(
    store: str,
    message: str,
    corpus: Corpus,
    nodes: LocalNodes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(OutriderError, match=message):
        run(corpus, tmp_path, nodes, store=store, epochs=1)
    printed = "".join(capfd.readouterr())
    assert "capture again" not in printed and "it resumes" not in printed, printed
    assert not ranks(tmp_path)
    assert not (tmp_path / "training" / "attempt-2").exists()


def test_ranks_that_always_die_end_training(
    corpus: Corpus, nodes: LocalNodes, tmp_path: Path
) -> None:
    with pytest.raises(OutriderError, match=r"lost processes .* more than 3 times"):
        run(
            corpus,
            tmp_path,
            nodes,
            store="KilledInRank1",
            **LONG | {"checkpoint_every": 60},
        )


def test_training_goes_on_with_what_a_lost_node_leaves_and_grows_again(
    corpus: Corpus,
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_RESIZE_S", 2.0), ("_START_S", 15.0)):
        monkeypatch.setattr(f"outrider.training.distributed.ray_train.{name}", seconds)
    with local_nodes() as own:
        _ = own.add()
        second = own.add()
        longer = LONG | {"epochs": 120}
        with (
            once_at_step(tmp_path, 23, lambda: own.kill(second)),
            once_at_step(tmp_path, 40, own.add),
        ):
            result = run(corpus, tmp_path, own, **longer)
        assert result["stopped_at"] == result["steps"] == 360
        printed = capfd.readouterr().out
        assert "it resumes with 1 processes from step-00000" in printed
        assert "it resumes with 2 processes" in printed
        assert printed.count("it resumes with") == 2
        run(corpus, tmp_path / "whole", own, **longer)
    ours, theirs = (
        load_file(folder / "speculator" / "model.safetensors")
        for folder in (tmp_path, tmp_path / "whole")
    )
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4)
    steps = [line["step"] for line in metrics(tmp_path) if "loss" in line]
    assert steps == list(range(1, 361)), "a step is missing or was logged twice"
