"""Tasks on a private cluster of this machine: results, errors, kills."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")

from outrider.common.child_process import ChildError
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import RUNS, run_tasks
from outrider.common.errors import OutriderError

pytestmark = pytest.mark.slow
SECRET = "Ada Lovelace, born 1815"


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


def test_errors_come_back_without_their_text_in_rays_logs(session):
    with pytest.raises(OutriderError, match="line 7 of log"):
        run_tasks(failing, range(9), OutriderError("line 7 of log"), "a test")
    with pytest.raises(ChildError) as caught:
        run_tasks(failing, range(9), ValueError(SECRET), "a test")
    assert "in a task of a test" in str(caught.value) and SECRET not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    logs = [path for path in session.folder.rglob("logs/*") if path.is_file()]
    assert logs and not any(SECRET.encode() in path.read_bytes() for path in logs)


def test_a_task_whose_worker_is_killed_runs_again_and_results_keep_their_order(session, tmp_path):
    assert run_tasks(killed, range(30), tmp_path, "a test") == list(range(30))
    assert len(list(tmp_path.glob("1-*"))) == 3
    (tmp_path / "always").touch()
    with pytest.raises(OutriderError, match=f"the ingest: a task ended {RUNS} times"):
        run_tasks(killed, [5], tmp_path, "the ingest")
