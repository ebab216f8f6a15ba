"""The target's directory, and the errors where there is none."""

import json
import shutil

import pytest
from huggingface_hub.utils import filter_repo_objects

from outrider.common.errors import OutriderError
from outrider.pipeline.preflight import check_target_and_base
from outrider.serving.config import TargetConfig
from outrider.speculators.checkpoints.layout import INDEX
from tests.tiny import write_tiny_target


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/proc/self", r"target\.model = .*no config\.json there"),
        *((name, "nano_r1") for name in ("nano_r2", "./missing", "/no/such/place", "a/b/c")),
    ],
)
def test_a_model_that_is_neither_checkpoint_nor_hub_id_is_named_with_the_choices(model, message):
    with pytest.raises(OutriderError, match=message):
        TargetConfig(model=model).directory()


def test_an_adapter_is_named_with_its_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    message = r"PEFT's adapter_config\.json: an adapter of org/base\. Merge it"
    with pytest.raises(OutriderError, match=message):
        TargetConfig(model=str(tmp_path)).directory()


def test_of_a_hub_model_training_fetches_the_shards_that_it_reads(tmp_path, monkeypatch):
    repository = write_tiny_target(tmp_path / "repository", layers_in_shards=True)
    # R1's layers 0 to 60 are in 160 shards that contain nothing that training reads.
    index = json.loads((repository / INDEX).read_text())
    for name in index["weight_map"]:
        if name.startswith(("model.layers.0.", "model.layers.1.", "model.norm")):
            index["weight_map"][name] = "model-00000-of-00002.safetensors"
    (repository / INDEX).write_text(json.dumps(index))
    for name in ("model-00000-of-00002.safetensors", "modeling_deepseek.bin", "tokenizer.json"):
        (repository / name).write_text("{}")
    hub = tmp_path / "cache" / "snapshots" / "0123abcd"

    def snapshot_download(
        model: str, revision: str | None = None, allow_patterns: list[str] | None = None
    ) -> str:
        assert model == "deepseek-ai/DeepSeek-R1" and revision in (None, "main", "0123abcd")
        hub.mkdir(parents=True, exist_ok=True)
        files = [path.name for path in repository.iterdir()]
        for name in filter_repo_objects(files, allow_patterns=allow_patterns):
            shutil.copy(repository / name, hub / name)
        return str(hub)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)

    target = TargetConfig(model="deepseek-ai/DeepSeek-R1", revision="main")
    assert target.on_hub and target.training_directory() == hub
    shards = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    fetched = {path.name for path in hub.iterdir()}
    assert fetched >= {"config.json", INDEX, "tokenizer.json"} | shards
    assert not fetched & {"model-00000-of-00002.safetensors", "modeling_deepseek.bin"}
    check_target_and_base(hub)
    assert target.directory() == hub
    assert (hub / "model-00000-of-00002.safetensors").exists()
