"""Training on a Ray cluster: which processes run there, their number, messages and output."""

import json
from pathlib import Path

import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import _uses_ray
from outrider.training.distributed.rank_output import RankOutput, rank_log


@pytest.mark.parametrize(
    ("address", "launcher", "processes", "expected"),
    [
        (None, None, 2, False),
        ("local", None, 2, True),
        ("local", None, 1, False),
        ("auto", None, 1, True),
        ("10.0.0.1:6379", "srun python", 2, False),
    ],
)
def test_ray_train_is_the_launcher_of_a_cluster(
    address: str | None, launcher: str | None, processes: int, expected: bool
) -> None:
    training = TrainingConfig(launcher=launcher, processes=processes, rows_per_step=2)
    assert _uses_ray(ClusterConfig(address=address), training) == expected


def test_lines_of_all_ranks_reach_terminal_and_log_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("before\n")
    rank_log(tmp_path, 0).write_text("of an earlier run\n")
    with RankOutput(tmp_path, 2, log) as output:
        first, second = (rank_log(tmp_path, rank).open("a") for rank in range(2))
        print("one", file=first, flush=True)
        print("half of a ", end="", file=second, flush=True)
        output.relay(to_terminal=True)
        assert capsys.readouterr().out == "one\n"
        print("line", file=second, flush=True)
        output.relay(to_terminal=True)
        assert capsys.readouterr().out == "half of a line\n"
        print("after an error", file=first, flush=True)
        output.relay(to_terminal=False)
        print("cut", end="", file=first, flush=True)
    assert capsys.readouterr().out == ""
    assert log.read_text() == "before\none\nhalf of a line\nafter an error\ncut\n"
    assert [path.name for path in tmp_path.iterdir()] == ["train.log"]


def test_ray_is_not_imported_without_a_cluster() -> None:
    import subprocess
    import sys

    code = (
        "import json, sys, outrider.training.distributed.launch;"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] == 'ray']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(done.stdout) == []
