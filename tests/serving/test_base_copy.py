"""The target's own layer is copied once; a drafter without an embedding is refused."""

from safetensors.torch import load_file

from outrider.serving.speculator import Speculator, served_base
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors
from outrider.speculators.kinds import trainable_kind_of
from tests.tiny import write_tiny_target


def test_the_copy_has_the_layer_s_bytes_and_is_made_once(tmp_path):
    target = write_tiny_target(tmp_path / "target", layers_in_shards=True)
    copy = served_base(target, target, tmp_path / "cache")
    layout = read_layout(target)
    names = trainable_kind_of(target).native_tensors(layout)
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    tensors, original = load_file(copy / "model.safetensors"), CheckpointTensors(layout)
    assert tensors.keys() == names
    for name, tensor in tensors.items():
        assert tensor.dtype == original.raw(name).dtype and tensor.equal(original.raw(name))
    assert Speculator.named(copy).kind == Speculator.named(target).kind
    made = (copy / "model.safetensors").stat().st_ino
    assert served_base(target, target, tmp_path / "cache") == copy
    assert (copy / "model.safetensors").stat().st_ino == made, "copied twice"
    other = write_tiny_target(tmp_path / "other", seed=1, layers_in_shards=True)
    assert served_base(other, other, tmp_path / "cache") != copy
    assert served_base(other, target, tmp_path / "cache") == other  # a speculator in use
