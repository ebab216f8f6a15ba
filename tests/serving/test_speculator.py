"""A speculator is identified by its name or directory; the target's own layer is copied once."""

import pytest
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.serving.speculator import Speculator, served_directory
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors
from outrider.speculators.kinds import trainable_kind_of
from tests.tiny import write_tiny_target


def test_a_name_or_a_directory_identifies_the_kind(tmp_path):
    for name, architecture, layers in (
        ("mtp", "DeepseekV3ForCausalLM", 1),
        ("eagle3", "Eagle3DeepseekV2ForCausalLM", 1),
        ("neither", "LlamaForCausalLM", 0),
    ):
        config = {"architectures": [architecture], "num_nextn_predict_layers": layers}
        write_json(tmp_path / name / "config.json", config)
    for name, expected in (
        ("ngram", Speculator("ngram")),
        ("none", Speculator("none")),
        (str(tmp_path / "mtp"), Speculator("mtp", tmp_path / "mtp")),
        (str(tmp_path / "eagle3"), Speculator("eagle3", tmp_path / "eagle3")),
    ):
        assert Speculator.from_name(name) == expected
    for name, message in (
        (
            "neither",
            r"a draft model, which is not read.* an EAGLE-3 checkpoint .*, or an MTP directory",
        ),
        ("gone", r"gone/config\.json: no such file"),
    ):
        with pytest.raises(OutriderError, match=message):
            Speculator.from_name(tmp_path / name)


def test_the_copy_has_the_layer_s_bytes_and_is_made_once(tmp_path):
    target = write_tiny_target(tmp_path / "target", layers_in_shards=True)
    copy = served_directory(target, target, tmp_path / "cache")
    layout = read_layout(target)
    names = trainable_kind_of(target).native_tensors(layout)
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    tensors = load_file(copy / "model.safetensors")
    original = CheckpointTensors(layout)
    assert tensors.keys() == names
    for name, tensor in tensors.items():
        assert tensor.dtype == original.raw(name).dtype and tensor.equal(original.raw(name))
    assert Speculator.from_name(copy).kind == Speculator.from_name(target).kind
    made = (copy / "model.safetensors").stat().st_ino
    assert served_directory(target, target, tmp_path / "cache") == copy
    assert (copy / "model.safetensors").stat().st_ino == made, "copied twice"
    other = write_tiny_target(tmp_path / "other", seed=1, layers_in_shards=True)
    assert served_directory(other, other, tmp_path / "cache") != copy
    assert served_directory(other, target, tmp_path / "cache") == other  # a speculator in use
