"""Several ranks: a failing one ends the job soon and is named; every launcher works alike."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.training.distributed.spec import WORKER
from outrider.training.distributed.worker import slurm_world
from tests.training.corpus import Corpus, make_corpus
from tests.training.forked_ranks import free_port
from tests.training.store_worker import STORE_WORKER

LAUNCH = Path(__file__).resolve().parents[3] / "recipes" / "r1" / "launch"
SHORT = {"epochs": 1, "evaluate_every": 100, "checkpoint_every": 100}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(
        tmp_path_factory.mktemp("corpus"), train_sequences=12, validation_sequences=2
    )


TORCHRUN = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2"


@pytest.mark.parametrize(
    "launcher",
    [
        None,  # torchrun, as the trainer starts it
        pytest.param(f"{TORCHRUN} -m {STORE_WORKER}", marks=pytest.mark.slow),
        pytest.param("deepspeed", marks=pytest.mark.slow),
        pytest.param("srun", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_in_rank_1_ends_a_busy_rank_0_with_one_message(
    launcher: str | None,
    corpus: Corpus,
    cluster: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_PORT", free_port())
    if launcher in ("deepspeed", "srun"):
        launcher = with_store_worker(launchers(cluster)[launcher], tmp_path)
    settings = {} if launcher is None else {"launcher": launcher}
    began = time.monotonic()
    with pytest.raises(
        OutriderError, match=r"^rank 1: features/shard-00003.safetensors: 12 bytes.*capture again$"
    ):
        corpus.train(
            tmp_path,
            store="MistakeInRank1",
            processes=2,
            launch=True,
            **SHORT,
            **settings,
        )
    left = [path for path in (tmp_path / "training").glob("error.rank1.json")]
    assert left and time.time() - left[0].stat().st_mtime < 90, "the others took too long to end"
    assert time.monotonic() - began < 400
    # The message is the raised one; what launchers write about it is in the log.
    printed = "".join(capfd.readouterr())
    for word in ("capture again", "Traceback", "stores.py", "elastic", "rank 0"):
        assert word not in printed, printed
    logged = (tmp_path / "logs" / "train.log").read_text()
    assert "stores.py" not in logged, "a traceback for a user's mistake"
    assert "rank 1: features/shard-00003.safetensors" in logged


@pytest.mark.parametrize(
    ("store", "message"),
    [
        pytest.param(
            "BugInRank1",
            r"^rank 1: RuntimeError: a kernel failed; its traceback is in .*train.log$",
            marks=pytest.mark.slow,
        ),
        ("KilledInRank1", r"rank 1 left no message: perhaps killed"),
    ],
)
def test_the_failure_of_rank_1_is_reported(
    store: str, message: str, corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(OutriderError, match=message):
        corpus.train(tmp_path, store=store, processes=2, **SHORT)


def test_slurm_variables_become_those_of_torch() -> None:
    step = {
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "16",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    }
    assert slurm_world(step | {"MASTER_ADDR": "gpu-003"}) == {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "16",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "gpu-003",
        "MASTER_PORT": "29500",
    }
    with pytest.raises(OutriderError, match="MASTER_ADDR is not set"):
        slurm_world(step)


# Stand-ins for ssh and srun, which run the command on this machine.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    if [ "$1" = -o ]; then shift; fi
    shift
done
shift
exec sh -c "$1"
"""
SRUN = """#!/bin/sh
ntasks=
while [ "${1#-}" != "$1" ]; do
    case $1 in --ntasks=*) ntasks=${1#--ntasks=} ;; esac
    shift
done
task=0
running=
while [ "$task" -lt "$ntasks" ]; do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=$ntasks \\
        SLURM_STEP_TASKS_PER_NODE=$ntasks SLURM_STEP_NODELIST=localhost "$@" &
    running="$running $!"
    task=$((task + 1))
done
for process in $running; do wait "$process" || exit 1; done
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hostfile that lists this machine twice; ssh and srun on the PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("ssh", SSH), ("srun", SRUN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755 | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# both are this machine\nlocalhost slots=1\n127.0.0.1 slots=1\n")
    return hostfile


def test_torchrun_over_ssh_has_the_settings_of_collectives(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh passes no variables."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH.replace("exec sh", 'exec env -i PATH="$PATH" sh'))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv | grep -E "NCCL|GLOO|SECRET" | sort >> {tmp_path}/seen\n')
    python.chmod(0o755)
    values = {"NCCL_SOCKET_IFNAME": "=eth0,bond 1", "GLOO_SOCKET_IFNAME": "it's", "SECRET": "x"}
    for name, value in (values | {"OUTRIDER_PYTHON": str(python)}).items():
        monkeypatch.setenv(name, value)
    command = ["sh", LAUNCH / "torchrun.sh", cluster, "spec.json"]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "seen").read_text().splitlines() == 2 * [
        "GLOO_SOCKET_IFNAME=it's",
        "NCCL_SOCKET_IFNAME==eth0,bond 1",
    ]


def launchers(hostfile: Path) -> dict[str, str]:
    one = hostfile.with_name("one")
    one.write_text("localhost slots=2\n")
    script = (LAUNCH / "slurm.sbatch").read_text()
    [srun] = [line for line in script.splitlines() if line.startswith("launcher=")]
    srun = srun.removeprefix('launcher="').removesuffix('"').replace("$SLURM_NTASKS", "2")
    return {
        "torchrun": f"sh {LAUNCH}/torchrun.sh {hostfile}",
        "deepspeed": f"sh {LAUNCH}/deepspeed.sh {one}",
        "srun": srun.replace("python", os.environ.get("OUTRIDER_PYTHON", "") or sys.executable),
    }


def with_store_worker(command: str, folder: Path) -> str:
    """The command, or a copy of the script that it runs, with the worker of these tests."""
    words = command.replace(WORKER, STORE_WORKER).split()
    for index, word in enumerate(words):
        if Path(word).suffix == ".sh":
            text = Path(word).read_text().replace(WORKER, STORE_WORKER)
            (folder / "launch.sh").write_text(text)
            words[index] = str(folder / "launch.sh")
    return " ".join(words)


@pytest.mark.parametrize(
    "launcher",
    ["deepspeed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torchrun", "srun"))],
)
def test_the_example_launchers_start_one_run_of_two_processes(
    launcher: str, cluster: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", free_port())
    result = corpus.train(tmp_path, processes=2, launcher=launchers(cluster)[launcher], **SHORT)
    assert result["steps"] == result["stopped_at"] > 0
    assert (tmp_path / "speculator" / "model.safetensors").is_file()
