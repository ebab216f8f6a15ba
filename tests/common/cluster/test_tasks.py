"""Tasks on a private cluster of this machine: results, errors, kills."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")

from outrider.common.child_process import ChildError
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import RUNS, run_tasks, slots
from outrider.common.errors import OutriderError

pytestmark = pytest.mark.slow
SECRET = "Ada Lovelace, born 1815"


def scaled(factor: int, value: int) -> int:
    return factor * value


def failing(error: Exception, value: int) -> int:
    if value == 3:
        raise error
    return value


def killed(folder: Path, value: int) -> int:
    """Kills its worker on the first runs of item 1; items of a run are noted as files."""
    run = len(list(folder.glob(f"{value}-*")))
    (folder / f"{value}-{run}").touch()
    if (folder / "always").exists() or (value == 1 and run < 2):
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.fixture(scope="module")
def session():
    with open_cluster(ClusterConfig(address="local"), cpus=2) as opened:
        yield opened


def test_every_item_once_and_no_more_in_progress_than_there_is_room(session):
    drawn = []

    def items():
        for value in range(30):
            drawn.append(value)
            yield value

    done = {}
    for index, result in run_tasks(scaled, items(), 7, "a test"):
        done[index] = result
        assert len(drawn) - len(done) <= slots() + 2
    assert done == {value: 7 * value for value in range(30)}


def test_errors_come_back_without_their_text_in_rays_logs(session):
    with pytest.raises(OutriderError, match="line 7 of log"):
        list(run_tasks(failing, range(9), OutriderError("line 7 of log"), "a test"))
    with pytest.raises(ChildError) as caught:
        list(run_tasks(failing, range(9), ValueError(SECRET), "a test"))
    assert "in a task of a test" in str(caught.value) and SECRET not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    logs = list(session.folder.rglob("logs/*"))
    assert logs
    for path in logs:
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()


def test_a_task_whose_worker_is_killed_runs_again(session, tmp_path):
    assert dict(run_tasks(killed, range(3), tmp_path, "a test")) == {0: 0, 1: 1, 2: 2}
    assert len(list(tmp_path.glob("1-*"))) == 3
    (tmp_path / "always").touch()
    with pytest.raises(OutriderError, match=f"the ingest: a task ended {RUNS} times"):
        list(run_tasks(killed, [5], tmp_path, "the ingest"))
