"""DFlash heads: files, checks, and what vLLM is given."""

import json
from pathlib import Path

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import kind_of, trainable_kind
from outrider.speculators.kinds.dflash.kind import DFlash
from outrider.speculators.kinds.protocol import Origin
from tests.dflash_head import write_dflash_head
from tests.eagle3_head import write_eagle3_head
from tests.tiny import VOCAB

KIND = DFlash()


def test_a_head_is_recognized_written_and_read_again(target: Path, tmp_path: Path) -> None:
    """From scratch with the traffic's draft vocabulary, over a base, and as a twin."""
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[5, 3, 40]] = torch.tensor([9, 7, 5])
    origin = Origin(target, None, HeadConfig(draft_vocabulary=3, layers=(1, 2)), lambda: counts)
    head = KIND.start(origin, torch.float32, "cpu", seed=1)
    assert head.layers[0].mlp.down_proj.weight.std() < 0.03 < head.fc.weight.std()
    KIND.write(KIND.trained(head, head.state_dict()), origin, tmp_path / "scratch")
    config = json.loads((tmp_path / "scratch" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    # The ids count outputs of layers; the target has no padding token, so its end is the mask.
    section = {"mask_token_id": 1, "target_layer_ids": [0, 1], "causal": False}
    assert config["dflash_config"] == section
    assert KIND.features(config, read_layout(target).config).names == ("layer_1", "layer_2")
    assert kind_of(tmp_path / "scratch") is trainable_kind("dflash")
    for name, options in (("eagle3", {}), ("p_eagle", {"pard_token": 2})):
        other = write_eagle3_head(target, tmp_path / name, **options)
        assert kind_of(other) is trainable_kind(name)
    KIND.check(tmp_path / "scratch", read_layout(target))
    over = Origin(target, tmp_path / "scratch")
    warm = KIND.start(over, torch.float32, "cpu", seed=2)
    KIND.write(KIND.trained(warm, warm.state_dict()), over, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (
            tmp_path / "scratch" / name
        ).read_bytes()
    assert KIND.swappable(tmp_path / "scratch", tmp_path / "again")
    assert "layers.0.self_attn.k_norm.weight" in dict(KIND.tensors(tmp_path / "again"))
    assert {"d2t", "hidden_norm.weight"} <= dict(KIND.swap_tensors(tmp_path / "again")).keys()
    KIND.write_other_formats(tmp_path / "again", target, "tiny", 5, tmp_path / "twins")
    twin = tmp_path / "twins" / "speculators"
    published = json.loads((twin / "config.json").read_text())
    assert published["speculators_model_type"] == "dflash" and published["mask_token_id"] == 1
    assert published["aux_hidden_state_layer_ids"] == [1, 2]
    assert published["sliding_window_non_causal"] is True and published["block_size"] == 6
    KIND.check(twin, read_layout(target))
    assert kind_of(twin) is trainable_kind("dflash")
    one, two = (KIND.load(path, target, torch.float32) for path in (tmp_path / "again", twin))
    assert one.shape == two.shape and one.state_dict().keys() == two.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


def test_vllm_is_given_a_fixed_number_of_drafts(tmp_path: Path) -> None:
    assert KIND.abilities.fixed_k
    assert KIND.vllm_settings(tmp_path, 5, "greedy", None) == {
        "method": "dflash",
        "model": str(tmp_path),
        "num_speculative_tokens": 5,
        "draft_sample_method": "greedy",
    }
    with pytest.raises(OutriderError, match="drafts 5 tokens in every step"):
        KIND.vllm_settings(tmp_path, 5, "greedy", [(1, 4, 5), (5, 8, 2)])


def test_keys_that_the_engine_reads_at_its_start_are_not_exchanged(
    target: Path, tmp_path: Path
) -> None:
    one = write_dflash_head(target, tmp_path / "one")
    assert KIND.swappable(one, write_dflash_head(target, tmp_path / "two", seed=1))
    for name, options in {
        "mask": {"mask_token": 3},
        "layers": {"layers": [1]},
        "theta": {"rope_theta": 5e5},
    }.items():
        assert not KIND.swappable(one, write_dflash_head(target, tmp_path / name, **options))


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "layers": ({"num_hidden_layers": 2}, "num_hidden_layers = 2: .* of one layer.*CPU"),
    "causal": ({"section": {"causal": True}}, "causal: Outrider neither"),
    "sliding": ({"layer_types": ["sliding_attention"]}, "layer_types"),
    "window": ({"section": {"use_swa": True}}, "use_swa"),
    "sink": ({"section": {"attention_sink_bias": True}}, "attention_sink_bias"),
    "bias": ({"attention_bias": True}, "attention_bias"),
    "rope": ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type"),
    "mask": ({"mask_token": VOCAB}, f"mask_token_id = {VOCAB}: not a token of the target"),
    "deeper": ({"layers": (1, 3)}, r"target_layer_ids: the states before layers \[1, 3\]"),
    "order": ({"layers": (2, 1)}, "in ascending order"),
    "vocabulary": ({"vocab_size": VOCAB + 1}, "vocab_size"),
    "heads": ({"num_attention_heads": 2}, r"q_proj.weight has shape \[64, 64\]"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_head_that_is_not_unrolled_is_refused(
    target: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    directory = write_dflash_head(target, tmp_path / "head", **options)
    assert kind_of(directory) is trainable_kind("dflash")
    with pytest.raises(OutriderError, match=message):
        KIND.check(directory, read_layout(target))


def test_a_mask_embedding_of_its_own_is_refused(target: Path, tmp_path: Path) -> None:
    directory = write_dflash_head(target, tmp_path / "head")
    KIND.check(directory, read_layout(target))
    (directory / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(OutriderError, match="reads the target's embedding only"):
        KIND.check(directory, read_layout(target))
