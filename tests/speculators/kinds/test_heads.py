"""What heads of all kinds show: files, twins, gradients, a fixed number of drafts, refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import check_speculator, drafter_kind_of, trainable_kind
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.unroll import Slots, valid_BT
from tests.dflash_head import write_dflash_head, write_dspark_head
from tests.eagle3_head import write_eagle3_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import LAYERS
from tests.speculators.literal_engine import DEPTH, packed_row
from tests.tiny import HIDDEN, VOCAB, edit_tensors

WRITERS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "eagle3": (write_eagle3_head, {"fc_norm": True}),
    "p_eagle": (write_eagle3_head, {"fc_norm": True, "pard_token": 2}),
    "dflash": (write_dflash_head, {"mask_token": 2}),
    "dspark": (write_dspark_head, {"mask_token": 2}),
}
BLOCKS = ("dflash", "dspark")
DRAFTS = VOCAB // 4
"""Tokens of the written heads' own vocabulary."""
# The target has no padding token, so its end is the mask. DFlash's ids count outputs of layers.
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"]},
    "p_eagle": {"architectures": ["LlamaForCausalLMEagle3"], "pard_token": 1},
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 1], "causal": False},
    },
    "dspark": {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "mask_token_id": 1,
        "target_layer_ids": [0, 1],
        "sample_from_anchor": True,
        "markov_rank": 64,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
TWINS: dict[str, dict[str, Any]] = {
    "eagle3": {"speculators_model_type": "eagle3", "norm_before_residual": False},
    "p_eagle": {"speculators_model_type": "peagle", "mask_token_id": 1},
    "dflash": {
        "speculators_model_type": "dflash",
        "mask_token_id": 1,
        "sliding_window_non_causal": True,
        "block_size": 6,
    },
    "dspark": {
        "speculators_model_type": "dspark",
        "mask_token_id": 1,
        "sample_from_anchor": True,
        "markov_rank": 64,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "block_size": 5,
    },
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_head_is_recognized_written_and_read_again(
    name: str, target: Path, tmp_path: Path
) -> None:
    """From scratch with the traffic's draft vocabulary, over a base, and as a twin."""
    kind = trainable_kind(name)
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[5, 3, 40]] = torch.tensor([9, 7, 5])
    head_config = HeadConfig(draft_vocabulary=3, layers=(1, 2))
    origin = Origin(target, None, head_config, lambda: counts[None])
    head: Any = kind.start(origin, torch.float32, "cpu", seed=1)
    layer = head.layers[0] if name in BLOCKS else head.midlayer
    assert layer.mlp.down_proj.weight.std() < 0.03 < head.fc.weight.std()
    scratch = tmp_path / "scratch"
    again = tmp_path / "again"
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, scratch)
    config = read_json(scratch / "config.json")
    assert CONFIGS[name].items() <= config.items()
    assert kind.features(config, read_layout(target).config).names == ("layer_1", "layer_2")
    kind.check(scratch, read_layout(target))
    over = Origin(target, scratch)
    warm = kind.start(over, torch.float32, "cpu", seed=2)
    kind.write(kind.trained_tensors(warm, warm.state_dict()), over, again)
    for file in ("config.json", "model.safetensors"):
        assert (again / file).read_bytes() == (scratch / file).read_bytes()
    assert kind.swappable(scratch, again)
    swapped = dict(kind.swap_tensors(again)).keys()
    assert swapped == dict(kind.trained_tensors(warm, warm.state_dict())).keys() - {"t2d"}
    kind.write_other_formats(again, target, "tiny", 5, tmp_path / "twins")
    twin = tmp_path / "twins" / "speculators"
    published = read_json(twin / "config.json")
    assert TWINS[name].items() <= published.items()
    assert not published["transformer_layer_config"].keys() & {"pard_token", "markov_rank"}
    assert published[f"{'' if name in BLOCKS else 'eagle_'}aux_hidden_state_layer_ids"] == [1, 2]
    kind.check(twin, read_layout(target))
    assert drafter_kind_of(scratch) is drafter_kind_of(twin) is kind
    one, two = (kind.load(path, target, torch.float32) for path in (again, twin))
    assert one.shape == two.shape and one.state_dict().keys() == two.state_dict().keys()
    for key, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[key]), key
    if name not in BLOCKS:
        del published["norm_before_residual"]  # the format's defaults
        (twin / "config.json").write_text(json.dumps(published))
        default = kind.load(twin, target, torch.float32).shape.norm_before_residual
        assert default is (name == "eagle3")


@pytest.mark.parametrize("name", WRITERS)
def test_a_warm_start_drafts_the_tokens_of_the_traffic(
    name: str, target: Path, tmp_path: Path
) -> None:
    write, options = WRITERS[name]
    base_dir = write(target, tmp_path / "base", layers=LAYERS, **options)
    kind = trainable_kind(name)
    counts = torch.arange(VOCAB) // 5 % 4
    base: Any = kind.load(base_dir, target, torch.float32)
    base_ids = base.target_ids_D.tolist()
    by_frequency = sorted(range(VOCAB), key=lambda t: (-counts[t], t not in base_ids, t))
    expected = sorted(by_frequency[: len(base_ids)])
    counts_FV = torch.stack([counts, counts])  # parts of the same traffic: its tokens are the best
    assert set(expected) & set(base_ids) and set(expected) - set(base_ids)
    origin = Origin(target, base_dir, token_counts=lambda: counts_FV)
    head: Any = kind.start(origin, torch.float32, "cpu", seed=1)
    assert head.target_ids_D.tolist() == expected
    rows_VH = load_target_ends(target).lm_head_VH
    # Least squares, literally: one factor for all elements, and one shift for each column.
    columns = torch.eye(HIDDEN).repeat(len(base_ids), 1)
    unknowns = torch.cat([rows_VH[base_ids].reshape(-1, 1), columns], dim=1)
    fitted = torch.linalg.lstsq(unknowns, base.lm_head.weight.detach().reshape(-1, 1)).solution
    new_VH = {"lm_head.weight": fitted[0] * rows_VH + fitted[1:].T}
    if name == "dspark":
        new_VH["markov_head.markov_w2.weight"] = torch.zeros(VOCAB, 1)
    for rows, new in new_VH.items():
        before, after = (each.get_parameter(rows) for each in (base, head))
        for row, token in zip(after, expected, strict=True):
            known = before[base_ids.index(token)] if token in base_ids else new[token]
            torch.testing.assert_close(row, known.expand_as(row))
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, tmp_path / "out")
    kind.check(tmp_path / "out", read_layout(target))
    again: Any = kind.load(tmp_path / "out", target, torch.float32)
    assert again.target_ids_D.tolist() == expected
    assert kind.swappable(base_dir, tmp_path / "out")


@pytest.mark.parametrize("name", WRITERS)
def test_gradients_reach_every_parameter(name: str, target: Path, tmp_path: Path) -> None:
    write, options = WRITERS[name]
    directory = write(target, tmp_path / "head", layers=LAYERS, **options)
    head = trainable_kind(name).load(directory, target, torch.float32)
    ends = load_target_ends(target)
    row = packed_row(2 * HIDDEN)
    _, states = head.unroll(ends, Slots(*row, valid_BT(row[2], 0)), DEPTH)
    own = head.head(ends)
    sum(own.logits(u).square().sum() for u in states).backward()
    for u_NH in states:
        auxiliary_N = own.auxiliary_loss(u_NH, torch.full((len(u_NH),), 0.5))
        if auxiliary_N is not None:
            auxiliary_N.sum().backward()
    for key, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("p_eagle", {"method": "eagle3", "parallel_drafting": True}),
        ("dflash", {"method": "dflash"}),
        ("dspark", {"method": "dspark"}),
    ],
)
def test_vllm_is_given_a_fixed_number_of_parallel_drafts(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    kind = trainable_kind(name)
    assert kind.vllm_settings(tmp_path, 5, "greedy", None) == settings | {
        "model": str(tmp_path),
        "num_speculative_tokens": 5,
        "draft_sample_method": "greedy",
    }
    with pytest.raises(OutriderError, match="drafts 5 tokens in every step"):
        kind.vllm_settings(tmp_path, 5, "greedy", [(1, 4, 5), (5, 8, 2)])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eagle3", {"layers": [1]}),
        ("eagle3", {"norm_before_residual": True}),
        ("p_eagle", {"pard_token": 3}),
        ("dflash", {"mask_token": 3}),
        ("dflash", {"layers": [1]}),
        ("dflash", {"rope_theta": 5e5}),
        ("dspark", {"rank": 8}),
    ],
)
def test_keys_that_the_engine_reads_at_its_start_are_not_exchanged(
    name: str, options: dict[str, Any], target: Path, tmp_path: Path
) -> None:
    write, written = WRITERS[name]
    given = {"layers": LAYERS} | written
    one = write(target, tmp_path / "one", **given)
    kind = trainable_kind(name)
    assert kind.swappable(one, write(target, tmp_path / "two", seed=1, **given))
    assert not kind.swappable(one, write(target, tmp_path / "other", **given | options))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("p_eagle", {"mla": True}, "a parallel head with DeepSeek's attention"),
    ("p_eagle", {"pard_token": VOCAB}, f"pard_token = {VOCAB}: not a token of the target's voc"),
    ("p_eagle", {"mask_values": 7}, "mask_hidden"),
    ("dflash", {"section": {"causal": True}}, "causal: Outrider neither"),
    ("dflash", {"section": {"attention_sink_bias": True}}, "attention_sink_bias"),
    ("dflash", {"attention_bias": True}, "attention_bias"),
    ("dflash", {"rope_scaling": {"type": "linear", "factor": 4}}, "factor = 4 .*write 4.0"),
    ("dflash", {"mask_token": VOCAB}, f"mask_token_id = {VOCAB}: not a token of the target"),
    ("dflash", {"layers": (1, 3)}, r"target_layer_ids \+ 1 = \[1, 3\], but .* 2 layers"),
    ("dflash", {"layers": (2, 1)}, "in ascending order"),
    ("dflash", {"vocab_size": VOCAB + 1}, "vocab_size"),
    ("dflash", {"num_attention_heads": 2}, r"q_proj.weight has shape \[64, 64\]"),
    ("dspark", {"changed": {"markov_head_type": "gated"}}, "markov_head_type = gated: Outrider"),
    ("dspark", {"changed": {"markov_rank": 0}}, "markov_rank = 0: "),
    ("dspark", {"changed": {"sample_from_anchor": False}}, "sample_from_anchor = False"),
    ("dspark", {"changed": {"enable_confidence_head": None}}, "enable_confidence_head = None"),
    ("dspark", {"changed": {"confidence_head_with_markov": False}}, "confidence_head_with"),
    ("dspark", {"changed": {"dspark_draft_topk": 64}}, "dspark_draft_topk = 64"),
    ("dspark", {"is_causal": True}, "causal: Outrider neither"),
    ("dspark", {"use_aux_hidden_state": False}, "use_aux_hidden_state"),
    ("dspark", {"mask_token": 10**6}, "mask_token_id = 1000000"),
    ("dspark", {"changed": {"markov_rank": 4}}, r"markov_w1.weight has shape \[97, 16\]"),
    ("eagle3", {"vocab_size": VOCAB - 1}, "a stale vocabulary"),
    ("eagle3", {"hidden_size": 32}, "hidden_size = 32, but the target has 64"),
    ("eagle3", {"model_type": "deepseek_v3"}, "load this EAGLE-3 head as an MTP layer"),
    ("eagle3", {"draft_vocab_size": DRAFTS + 1}, rf"lm_head\.weight has shape \[{DRAFTS}, 64\]"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_a_head_that_is_not_unrolled_or_served_is_refused(
    name: str, options: dict[str, Any], message: str, target: Path, tmp_path: Path
) -> None:
    write, written = WRITERS[name]
    directory = write(target, tmp_path / "head", **{"layers": LAYERS} | written | options)
    kind = trainable_kind(name)
    assert drafter_kind_of(directory) is kind
    with pytest.raises(OutriderError, match=message):
        kind.check(directory, read_layout(target))


CONFIDENCE = "confidence_head.proj.weight"
DAMAGED: list[tuple[str, Callable[[dict[str, Tensor]], Any], str]] = [
    ("eagle3", lambda t: t.update(d2t=t["d2t"] + VOCAB), "d2t maps draft tokens to .*: a stale"),
    ("eagle3", lambda t: t.update(d2t=-torch.arange(DRAFTS)), "23 of them twice"),
    ("eagle3", lambda t: t.update(t2d=t["t2d"].roll(1)), r"t2d marks .* stale"),
    ("eagle3", lambda t: t["fc.weight"].fill_(float("inf")), r"not a finite number in fc\.weight"),
    ("eagle3", lambda t: t.pop("fc.weight"), r"no tensor fc\.weight"),
    (
        "dspark",
        lambda t: t.update({CONFIDENCE: t[CONFIDENCE][:, :HIDDEN].clone()}),
        r"proj.weight has shape \[1, 64\]",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), DAMAGED)
def test_tensors_that_do_not_fit_are_refused(
    name: str,
    change: Callable[[dict[str, Tensor]], Any],
    message: str,
    target: Path,
    tmp_path: Path,
) -> None:
    write, options = WRITERS[name]
    directory = write(target, tmp_path / "head", layers=LAYERS, **options)
    check_speculator(directory, target)
    edit_tensors(directory, change)
    with pytest.raises(OutriderError, match=message):
        check_speculator(directory, target)


def test_a_mask_embedding_of_its_own_is_refused(target: Path, tmp_path: Path) -> None:
    directory = write_dflash_head(target, tmp_path / "head")
    (directory / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(OutriderError, match="reads only the target's embedding"):
        check_speculator(directory, target)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("chosen", "theta"), [({}, 1e6), ({"rope_theta": "target"}, 1e6), ({"rope_theta": 1e4}, 1e4)]
)
def test_a_new_head_has_the_rotary_base_of_the_recipe(
    name: str, chosen: dict[str, Any], theta: float
) -> None:
    target_config = {
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_hidden_layers": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    kind = trainable_kind(name)
    config = kind.config(target_config, HeadConfig(**chosen), None)
    assert config["rope_theta"] == theta
    assert "rope_theta" in kind.head_keys
