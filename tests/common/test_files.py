"""Publication: whole or not there, also on a disk that is full."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.common.errors import OutriderError
from outrider.common.files import lock, lock_holder, publish


def test_a_full_disk_is_told_whoever_writes(small_disk: Path) -> None:
    kept = small_disk / "kept.safetensors"
    kept.write_bytes(b"whole")
    big = 8_000_000
    for write in (
        lambda path: path.write_bytes(bytes(big)),
        lambda path: save_file({"weight": torch.zeros(big // 4)}, path),
    ):
        with (
            pytest.raises(OutriderError, match=r"kept\.safetensors: no space left on the disk"),
            publish(kept) as path,
        ):
            write(path)
        assert kept.read_bytes() == b"whole" and [*small_disk.iterdir()] == [kept]


def test_a_full_disk_does_not_stop_a_holder_of_a_lock(small_disk: Path) -> None:
    with contextlib.suppress(OSError):
        (small_disk / "full").write_bytes(bytes(100_000_000))
    with lock(small_disk / ".lock", "uses this"):
        assert lock_holder(small_disk / ".lock") == 0
    assert lock_holder(small_disk / ".lock") is None


KILLED = """
import os, signal, sys
import subprocess
import sys
from pathlib import Path
from outrider.common.files import publish
with publish(Path(sys.argv[1])) as temporary:
    temporary.mkdir()
    (temporary / "weights").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "bundle")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp")
    with publish(tmp_path / "another") as mine:
        mine.mkdir()
        with publish(tmp_path / "third") as nested:  # of this process, which lives
            nested.mkdir()
        assert mine.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"another", "third"}
