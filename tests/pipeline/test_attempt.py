"""What is refused before any stage runs."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.pipeline.attempt import export_run
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory


def test_an_export_to_an_image_is_refused_before_it_runs(tmp_path: Path) -> None:
    loaded = load_recipe("resume_screening", [])
    run = RunDirectory.of(loaded.recipe, tmp_path / "runs")
    with pytest.raises(OutriderError, match="oci:images/resume:march: images are read, not writ"):
        export_run(loaded, run, to="oci:images/resume:march", force=True)
    assert list(tmp_path.iterdir()) == []
