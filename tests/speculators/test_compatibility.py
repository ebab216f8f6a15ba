"""An MTP layer of another target is refused from its files: file, key, value and fix."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.speculators.kinds import check_speculator, drafter_kind_of, weightless_names
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, VOCAB, edit_tensors, save_drafter, write_tiny_target

MTP = f"model.layers.{LAYERS}."


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
        assert drafter_kind_of(directory).name == "mtp"
        check_speculator(directory, target)


OUTPUT = MTP + "self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.update({OUTPUT: t[OUTPUT].bfloat16()}),
            r"o_proj\.weight is BF16, the target's F8_E4M3, and the engine builds",
        ),
        (
            lambda t: t[OUTPUT].view(torch.uint8)[0].fill_(0x7F),
            r"not a finite number in .*o_proj\.weight",
        ),
    ],
)
def test_fp8_is_compared_block_by_block(target, tmp_path, change, said):
    target = write_fp8_copy(target, tmp_path / "target")
    save_drafter(load_mtp(target), target, tmp_path / "speculator")
    check_speculator(tmp_path / "speculator", target)
    edit_tensors(tmp_path / "speculator", change)
    with pytest.raises(OutriderError, match=said):
        check_speculator(tmp_path / "speculator", target)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


EH = MTP + "eh_proj.weight"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (
            CONFIG,
            lambda d: edit_config(d, vocab_size=VOCAB + 3),
            f" vocab_size = {VOCAB + 3}, but the target's is {VOCAB} .*a stale vocabulary",
        ),
        (
            CONFIG,
            lambda d: edit_config(d, hidden_size=128),
            " hidden_size = 128, but the target has 64 .*belongs to another model",
        ),
        (
            CONFIG,
            lambda d: edit_config(d, num_hidden_layers=61),
            " num_hidden_layers = 61, but the target has 2",
        ),
        (
            CONFIG,
            lambda d: edit_config(d, n_routed_experts=8),
            " n_routed_experts = 8, but the target has 4",
        ),
        (CONFIG, lambda d: (d / CONFIG).unlink(), " no such file"),
        (
            WEIGHTS,
            lambda d: edit_tensors(d, lambda t: t.update({EH: t[EH][:, :-1].contiguous()})),
            rf".*{EH} has shape \[64, 127\], the target's \[64, 128\]",
        ),
        (
            WEIGHTS,
            lambda d: edit_tensors(d, lambda t: t[MTP + "hnorm.weight"][:1].fill_(-torch.inf)),
            rf".*not a finite number in {MTP}hnorm\.weight; the checkpoint is damaged",
        ),
        (
            WEIGHTS,
            lambda d: edit_tensors(d, lambda t: t.update({MTP + "eh": t.pop(EH)})),
            rf".*missing: {EH}; unexpected: {MTP}eh; the checkpoint is incomplete",
        ),
        (WEIGHTS, lambda d: shorten(d / WEIGHTS, 4), ".*not a complete safetensors file"),
        (WEIGHTS, lambda d: shorten(d / WEIGHTS, 200), ".*not a complete safetensors file"),
        (WEIGHTS, lambda d: shorten(d / WEIGHTS, -10), ".*not a complete safetensors file"),
        (WEIGHTS, lambda d: (d / WEIGHTS).unlink(), ".*no such file"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(target, speculator, file, change, said):
    change(speculator)
    with pytest.raises(OutriderError, match=f"{speculator / file}:{said}"):
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


def test_what_is_neither_says_what_is_known(target, tmp_path):
    shutil.copytree(target, tmp_path / "other")
    edit_config(tmp_path / "other", num_nextn_predict_layers=0, architectures=["MedusaModel"])
    weightless = ", ".join(weightless_names())
    with pytest.raises(
        OutriderError,
        match=rf"architectures = \['MedusaModel'\].* without a directory are {weightless}",
    ):
        check_speculator(tmp_path / "other", target)
