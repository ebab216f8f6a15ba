"""DFlash heads: sizes, files, checks, and what vLLM is given."""

import json
from pathlib import Path

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import kind_of, trainable_kind
from outrider.speculators.kinds.dflash.kind import DFlash
from outrider.speculators.kinds.dflash.layer import DFlashHead
from outrider.speculators.kinds.dflash.shape import read_shape
from outrider.speculators.kinds.dflash.size import DFlashSize
from outrider.speculators.kinds.protocol import Origin, RowShape
from tests.dflash_head import write_dflash_head
from tests.eagle3_head import write_eagle3_head
from tests.speculators.kinds.eagle3.test_eagle3_size import SEQUENCES, kept_by_autograd
from tests.tiny import VOCAB, tiny_config, write_tiny_target

KIND = DFlash()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_sizes_are_those_of_the_module(kv_heads: int, depth: int, dtype: torch.dtype) -> None:
    target = tiny_config().to_dict() | {"hidden_size": 256, "num_hidden_layers": 3}
    config = dict(KIND.config(target, HeadConfig(draft_vocabulary=40), None))
    shape = read_shape(config | {"num_key_value_heads": kv_heads}, target, "config.json")
    size = DFlashSize(shape)
    with torch.device("meta"):
        head = DFlashHead(shape, None)
    named = dict(head.named_parameters())
    assert size.total == size.trained() == sum(p.numel() for p in named.values())
    assert size.largest_trained() == max(p.numel() for p in named.values())
    assert size.parts["fc"] == named["fc.weight"].numel()
    of_attention = sum(p.numel() for name, p in named.items() if ".self_attn." in name)
    assert size.parts["attention"] == of_attention
    row = RowShape.of_sequences(SEQUENCES)
    counted = size.activations(row, depth, dtype.itemsize, "cpu", "all", 0).saved_bytes()
    kept = kept_by_autograd(shape, depth, dtype, DFlashHead)
    assert counted == pytest.approx(kept, rel=0.01)


def test_flops_are_those_of_the_matrices() -> None:
    """Counted once more from the module's calls: rows of each matrix, forward and backward."""
    target = tiny_config().to_dict() | {"hidden_size": 256, "num_hidden_layers": 3}
    config = KIND.config(target, HeadConfig(draft_vocabulary=40), None)
    shape = read_shape(config, target, "config.json")
    depth, tokens, anchors = 4, 250, 145
    with torch.device("meta"):
        head = DFlashHead(shape, None)
    attention, mlp = head.layers[0].self_attn, head.layers[0].mlp
    rows = {
        head.fc: tokens,
        attention.k_proj: tokens + anchors,
        attention.v_proj: tokens + anchors,
        attention.o_proj: depth * anchors,
        mlp.gate_proj: depth * anchors,
        mlp.up_proj: depth * anchors,
        mlp.down_proj: depth * anchors,
        head.lm_head: depth * anchors,
    }
    expected = 6.0 * sum(module.weight.numel() * count for module, count in rows.items())
    pairs = sum(a * (t - a / 2) for t, a in SEQUENCES)
    expected += 6.0 * depth * pairs * shape.heads * 2 * shape.head_dim
    expected += 2.0 * anchors * shape.vocab * shape.hidden  # the teacher
    lengths, counts = zip(*SEQUENCES, strict=True)
    assert (sum(lengths), sum(counts)) == (tokens, anchors)
    assert DFlashSize(shape).step_flops(depth, lengths, counts) == pytest.approx(expected)


def test_a_head_is_recognized_written_and_read_again(target: Path, tmp_path: Path) -> None:
    """From scratch with the traffic's draft vocabulary, over a base, and as a twin."""
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[5, 3, 40]] = torch.tensor([9, 7, 5])
    origin = Origin(target, None, HeadConfig(draft_vocabulary=3, layers=(1, 2)), lambda: counts)
    head = KIND.start(origin, SpeculatorConfig(), torch.float32, "cpu", seed=1)
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
    warm = KIND.start(over, SpeculatorConfig(), torch.float32, "cpu", seed=2)
    KIND.write(KIND.trained(warm, warm.state_dict()), over, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (
            tmp_path / "scratch" / name
        ).read_bytes()
    assert KIND.exchangeable(tmp_path / "scratch", tmp_path / "again")
    assert "layers.0.self_attn.k_norm.weight" in KIND.tensor_names(tmp_path / "again")
    assert {"d2t", "hidden_norm.weight"} <= dict(KIND.exchanged(tmp_path / "again")).keys()
    KIND.write_twins(tmp_path / "again", target, "tiny", 5, tmp_path / "twins")
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
    assert KIND.exchangeable(one, write_dflash_head(target, tmp_path / "two", seed=1))
    for name, options in {
        "mask": {"mask_token": 3},
        "layers": {"layers": [1]},
        "theta": {"rope_theta": 5e5},
    }.items():
        assert not KIND.exchangeable(one, write_dflash_head(target, tmp_path / name, **options))


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
