"""`outrider eval --server` for targets that cannot be trained: their log becomes prompts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.common.errors import OutriderError
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.cli.workplace import write_workplace
from tests.tiny_decoders import TOKENIZER

SIZES = {"vocab_size": 2048, "max_position_embeddings": 1024}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **SIZES}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": SIZES,
}
UNKNOWN = {"architectures": ["UnheardOfModel"], "model_type": "unheard_of"}


def write_target(config: dict[str, Any], folder: Path, tokenizer_of: Path) -> Path:
    """A target of config.json and nano R1's tokenizer, and a log and recipe for it."""
    target = folder / "target"
    target.mkdir()
    for name in TOKENIZER:
        shutil.copyfile(tokenizer_of / name, target / name)
    (target / "config.json").write_text(json.dumps(config))
    write_workplace(folder, target, {})
    return target


@pytest.mark.parametrize(("config", "positions"), [(GPT_OSS, 1024), (KIMI, 1024), (UNKNOWN, 2048)])
def test_a_refused_target_is_read_as_far_as_measuring_needs(
    config: dict[str, Any], positions: int, tmp_path: Path, nano_r1: Path
) -> None:
    target = write_target(config, tmp_path, nano_r1)
    recipe = str(tmp_path / "mine.yaml")
    with pytest.raises(OutriderError, match="not a supported target"):
        outrider.open(recipe, runs=tmp_path / "runs")
    run = outrider.open(recipe, runs=tmp_path / "runs", measures_server=True)
    assert run.recipe.serving.engine.max_model_len == positions
    builder = SequenceBuilder(target)
    assert builder.vocabulary == config.get("vocab_size", builder.vocabulary) > 1000


def test_the_log_of_a_refused_target_becomes_prompts(tmp_path: Path, nano_r1: Path) -> None:
    write_target(KIMI, tmp_path, nano_r1)
    recipe = str(tmp_path / "mine.yaml")
    run = outrider.open(recipe, runs=tmp_path / "runs", measures_server=True)
    with run.attempt():
        results = run.run_stages(["ingest", "split"], {"measured": True})
    assert results["ingest"]["exchanges"] == 40 and results["split"]
