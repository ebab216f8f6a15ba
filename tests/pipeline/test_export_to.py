"""What is refused before any stage runs."""

from pathlib import Path

import pytest

import outrider
from outrider.common.errors import OutriderError


def test_an_export_to_an_image_is_refused_before_it_runs(tmp_path: Path) -> None:
    run = outrider.open("resume_screening", runs=tmp_path / "runs")
    with pytest.raises(OutriderError, match="oci:images/resume:march: images are read, not writ"):
        run.export("oci:images/resume:march", force=True)
    assert list(tmp_path.iterdir()) == []
