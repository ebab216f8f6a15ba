"""Faults of a run's machine or its user: one message, and the same command goes on."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.common.process_tree import wait_until
from tests.cli.commands import COMMANDS, assert_one_message, run
from tests.cli.workplace import write_workplace

pytestmark = [pytest.mark.attack("faults"), pytest.mark.slow]

WORDS = ("train", "mine.yaml", "--stages", "ingest,split", "split.heldout_fraction=0.25")


@pytest.fixture
def workplace(tmp_path: Path, nano_r1: Path) -> Path:
    sections = {"split": {"near_duplicate_similarity": 1.0}}
    return write_workplace(tmp_path / "work", nano_r1, {}, **sections)


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()


def goes_on(workplace: Path, *words: str) -> None:
    """The same command ends well."""
    finished = run("outrider", *WORDS, *words, cwd=workplace)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)], ids=["SIGINT", "SIGTERM"]
)
def test_two_signals(workplace: Path, number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [COMMANDS / "outrider", *WORDS],
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = workplace / "runs" / "mine" / "stages" / "ingest.started.json"
    assert wait_until(lambda: started.is_file() or process.poll() is not None, 120)
    process.send_signal(number)
    process.send_signal(number)
    _, printed = process.communicate(timeout=120)
    assert process.returncode == status, printed
    assert "Traceback" not in printed
    goes_on(workplace)


def test_a_full_disk(workplace: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(5_150_000))
    finished = run("outrider", *WORDS, "--runs", str(small_disk), cwd=workplace)
    assert finished.returncode == 1
    assert "no space left on the disk" in finished.stderr
    assert "Traceback" not in finished.stderr
    (small_disk / "ballast").unlink()
    goes_on(workplace, "--runs", str(small_disk))


def test_a_stale_lock(workplace: Path) -> None:
    """Of a process that was killed, on another machine."""
    (workplace / "runs" / "mine").mkdir(parents=True)
    (workplace / "runs" / "mine" / ".lock").write_text("another-host 4711")
    goes_on(workplace)


def test_a_copied_run(workplace: Path) -> None:
    goes_on(workplace)
    shutil.copytree(workplace / "runs", workplace / "copy")
    shutil.rmtree(workplace / "runs")
    goes_on(workplace, "--runs", "copy")


def test_a_linked_run(workplace: Path) -> None:
    goes_on(workplace)
    (workplace / "runs").rename(workplace / "elsewhere")
    (workplace / "runs").symlink_to("elsewhere")
    goes_on(workplace)


HOLD = """
import sys, time
from pathlib import Path
from outrider.pipeline.run_dir import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_at_once(workplace: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(workplace / "runs" / "mine")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        finished = run("outrider", *WORDS, cwd=workplace)
        assert_one_message(finished, f"process {holder.pid} is using this run", "--runs DIR")
        holder.kill()
    goes_on(workplace)


@pytest.mark.parametrize("place", ["/proc/runs", "log.jsonl", "/dev/null", "\u0001"])
def test_an_unwritable_place(workplace: Path, place: str) -> None:
    if place == "\u0001":
        (workplace / place).touch()
    finished = run("outrider", *WORDS, "--runs", place, cwd=workplace)
    assert_one_message(finished, "cannot write here", "--runs DIR")
    assert "\u0001" not in finished.stderr
