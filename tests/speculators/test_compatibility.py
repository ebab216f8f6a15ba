"""A speculator of another target is refused from its files: file, key, value and fix."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.speculators.kinds import check_speculator, kind_of
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.eagle3_head import write_eagle3_head
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, VOCAB, edit_tensors, save_drafter, write_tiny_target

MTP = f"model.layers.{LAYERS}."
DRAFTS = VOCAB // 4
"""Tokens of the EAGLE-3 heads' own vocabulary."""


@pytest.fixture
def speculator(target, tmp_path):
    save_drafter(load_mtp(target), target, tmp_path / "speculator")
    return tmp_path / "speculator"


def edit_config(directory: Path, **values) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_outrider_writes_and_the_target_itself_belong_to_it(target, speculator, tmp_path):
    for directory in (
        speculator,
        target,
        write_tiny_target(tmp_path / "sharded", layers_in_shards=True),
    ):
        assert kind_of(directory).name == "mtp"
        check_speculator(directory, target)
    head = write_eagle3_head(target, tmp_path / "head")
    assert kind_of(head).name == "eagle3"
    check_speculator(head, target)


def test_fp8_is_compared_block_by_block(target, tmp_path):
    target = write_fp8_copy(target, tmp_path / "target")
    save_drafter(load_mtp(target), target, tmp_path / "speculator")
    check_speculator(tmp_path / "speculator", target)
    name = MTP + "self_attn.o_proj.weight"
    edit_tensors(
        tmp_path / "speculator", lambda tensors: tensors.update({name: tensors[name].bfloat16()})
    )
    with pytest.raises(
        OutriderError, match=r"o_proj\.weight is BF16, the target's F8_E4M3, and the engine builds"
    ):
        check_speculator(tmp_path / "speculator", target)

    def damaged(tensors):
        bits = torch.zeros(tensors[name].shape, dtype=torch.uint8)
        bits[0, 0] = 0x7F
        tensors[name] = bits.view(torch.float8_e4m3fn)

    edit_tensors(tmp_path / "speculator", damaged)
    with pytest.raises(OutriderError, match=r"not a finite number in .*o_proj\.weight"):
        check_speculator(tmp_path / "speculator", target)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "vocab_size",
            VOCAB + 3,
            f"vocab_size = {VOCAB + 3}, but the target's is {VOCAB} .*a stale vocabulary",
        ),
        ("hidden_size", 128, "hidden_size = 128, but the target has 64 .*belongs to another model"),
        ("num_hidden_layers", 61, "num_hidden_layers = 61, but the target has 2"),
        ("n_routed_experts", 8, "n_routed_experts = 8, but the target has 4"),
    ],
)
def test_another_target_s_configuration_is_named_with_key_and_value(
    target, speculator, key, value, said
):
    edit_config(speculator, **{key: value})
    with pytest.raises(OutriderError, match=f"{speculator / 'config.json'}: {said}"):
        check_speculator(speculator, target)


EH = MTP + "eh_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.update({EH: t[EH][:, :-1].contiguous()}),
            rf"{EH} has shape \[64, 127\], the target's \[64, 128\]",
        ),
        (
            lambda t: t[MTP + "hnorm.weight"][:1].fill_(float("-inf")),
            rf"not a finite number in {MTP}hnorm\.weight; the checkpoint is damaged",
        ),
        (
            lambda t: t.update({MTP + "eh": t.pop(EH)}),
            rf"missing: {EH}; unexpected: {MTP}eh; the checkpoint is incomplete",
        ),
    ],
)
def test_a_damaged_layer_is_named_with_its_tensor(target, speculator, change, said):
    edit_tensors(speculator, change)
    with pytest.raises(OutriderError, match=rf"{speculator / 'model.safetensors'}: .*{said}"):
        check_speculator(speculator, target)


def copies_of_the_ends(target, change):
    ends = load_file(target / "model.safetensors")

    def add(tensors):
        tensors[MTP + "embed_tokens.weight"] = change(ends["model.embed_tokens.weight"])
        tensors[MTP + "shared_head.head.weight"] = ends["lm_head.weight"].clone()

    return add


def three_rows_exchanged(embedding_VH):
    exchanged = embedding_VH.clone()
    exchanged[[4, 9, 30]] = embedding_VH[[9, 30, 4]]
    return exchanged


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            three_rows_exchanged,
            "differs in 3 of 97 rows from the target's model.embed_tokens.weight: a stale"
            " vocabulary",
        ),
        (lambda e: e.roll(1, 0), "differs in 97 of 97 rows"),
        (
            lambda e: e[:-1].clone(),
            r"has shape \[96, 64\], the target's model.embed_tokens.weight \[97, 64\]: a stale",
        ),
        (lambda e: three_rows_exchanged(e).float(), "differs in 3 of 97 rows"),
    ],
)
def test_a_copy_of_another_embedding_is_a_stale_vocabulary(target, speculator, change, said):
    edit_tensors(speculator, copies_of_the_ends(target, lambda e: e.clone()))
    check_speculator(speculator, target)
    edit_tensors(speculator, copies_of_the_ends(target, change))
    with pytest.raises(OutriderError, match=said):
        check_speculator(speculator, target)


def test_files_that_are_cut_short_or_gone_are_no_traceback(target, speculator):
    weights = speculator / "model.safetensors"
    whole = weights.read_bytes()
    for size in (4, 200, len(whole) - 10):
        weights.write_bytes(whole[:size])
        with pytest.raises(OutriderError, match="not a complete safetensors file"):
            check_speculator(speculator, target)
    weights.unlink()
    with pytest.raises(OutriderError, match="no such file"):
        check_speculator(speculator, target)
    (speculator / "config.json").unlink()
    with pytest.raises(OutriderError, match=r"config\.json: no such file"):
        check_speculator(speculator, target)


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        ({"vocab_size": VOCAB - 1}, None, "a stale vocabulary"),
        ({"hidden_size": 32}, None, "hidden_size = 32, but the target has 64"),
        ({"model_type": "deepseek_v3"}, None, "vLLM would load this EAGLE-3 head as an MTP layer"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 30]},
            None,
            r"\[1, 2, 30\], but the target has 2 layers",
        ),
        ({"draft_vocab_size": DRAFTS + 1}, None, rf"lm_head\.weight has shape \[{DRAFTS}, 64\]"),
        (
            {},
            lambda t: t.update(d2t=t["d2t"] + VOCAB),
            "d2t maps draft tokens to .*: a stale vocabulary map",
        ),
        (
            {},
            lambda t: t.update(d2t=-torch.arange(DRAFTS)),
            "not strictly ascending",
        ),
        ({}, lambda t: t.update(t2d=t["t2d"].roll(1)), r"t2d marks .* stale"),
        ({}, lambda t: t["fc.weight"].fill_(float("inf")), r"not a finite number in fc\.weight"),
        ({}, lambda t: t.pop("fc.weight"), r"no tensor fc\.weight"),
    ],
)
def test_an_eagle_3_head_of_another_target_is_refused(target, tmp_path, config, change, said):
    head = write_eagle3_head(target, tmp_path / "head", **config)
    if change:
        edit_tensors(head, change)
    with pytest.raises(OutriderError, match=said):
        check_speculator(head, target)


def test_what_is_neither_says_what_is_known(target, tmp_path):
    shutil.copytree(target, tmp_path / "other")
    edit_config(tmp_path / "other", num_nextn_predict_layers=0, architectures=["MedusaModel"])
    with pytest.raises(
        OutriderError,
        match=r"architectures = \['MedusaModel'\].* without a directory are ngram, none",
    ):
        check_speculator(tmp_path / "other", target)
