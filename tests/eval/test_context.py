"""What an evaluation's cached measurements depend on."""

from dataclasses import replace
from pathlib import Path

from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator


def test_a_base_that_changes_in_place_is_measured_again(tmp_path: Path) -> None:
    for name in ("target", "base", "custom"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"first")
    context = EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(tmp_path / "target")),
        serving=ServingConfig(),
        settings=EvalConfig(),
        depth=2,
        speculators={name: Speculator("mtp", tmp_path / name) for name in ("base", "custom")},
        data=EvaluationData(tmp_path / "sequences", {}),
        folders=EvaluationFolders(tmp_path, tmp_path / "out", tmp_path, tmp_path),
    )
    context.kept("measured").put({"seconds": 1.0})
    assert replace(context).kept("measured").done()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"second")
    assert not replace(context).kept("measured").done()
