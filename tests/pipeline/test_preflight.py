"""A target that cannot be trained is known before the first stage."""

import json
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.pipeline import preflight
from outrider.pipeline.preflight import check, check_target
from outrider.pipeline.recipe.load import load_recipe
from tests.fp8_target import QUANTIZATION, write_fp8_copy
from tests.tiny import write_tiny_target


def test_fp8_blocks_pass_and_other_quantizations_do_not(tmp_path: Path) -> None:
    target = write_fp8_copy(write_tiny_target(tmp_path / "source"), tmp_path / "target")
    check_target(target)
    config = json.loads((target / "config.json").read_text())
    awq = {"quant_method": "awq", "bits": 4}
    for other in (awq, QUANTIZATION | {"weight_block_size": None}):
        (target / "config.json").write_text(json.dumps(config | {"quantization_config": other}))
        with pytest.raises(
            OutriderError,
            match=rf"target/config\.json: quantization_config .*{other['quant_method']}",
        ):
            check_target(target)


@pytest.mark.parametrize("dry_run", [False, True])
def test_another_vllm_than_the_tested_one_is_refused(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "vllm_version", lambda: "0.33.0")
    with pytest.raises(OutriderError, match=r"vLLM 0\.33\.0 has not .*pip install vllm==0\.32\.0"):
        check(load_recipe("resume_screening").recipe, dry_run)
