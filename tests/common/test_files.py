"""Publication: whole or not there, also on a disk that is full."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.common.errors import OutriderError
from outrider.common.files import publish


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


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), publish(tmp_path / "file"):
        raise RuntimeError("mine")
    assert not [*tmp_path.iterdir()]
