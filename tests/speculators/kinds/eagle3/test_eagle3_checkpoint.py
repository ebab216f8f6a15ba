"""EAGLE-3 heads: from scratch or a base to a directory and back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.draft_vocabulary import chosen_ids, coverage, token_counts
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import check_speculator
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.size import drafter_size
from tests.eagle3_head import write_eagle3_head
from tests.tiny import HIDDEN, VOCAB, edit_tensors
from tests.tiny_decoders import write_tiny_decoder

EAGLE3 = Eagle3()
COUNTS_V = torch.arange(VOCAB) % 7 * 10
"""The most frequent tokens are 6, 13, 20, ...; every seventh never occurs."""


def start(origin: Origin, seed: int = 0) -> EagleHead:
    return EAGLE3.start(origin, torch.float32, "cpu", seed)


def scratch(target: Path, **head: Any) -> Origin:
    return Origin(target, None, HeadConfig(**head), lambda: COUNTS_V[None])


def publish(head: EagleHead, origin: Origin, directory: Path) -> Path:
    EAGLE3.write(EAGLE3.trained_tensors(head, head.state_dict()), origin, directory)
    return directory


def test_a_head_with_latent_attention_is_written_and_read_and_has_no_twin(
    target: Path, tmp_path: Path
) -> None:
    """test_heads.py has the others."""
    origin = scratch(target, layer_type="mla", draft_vocabulary=20)
    head = start(origin).bfloat16().float()
    directory = publish(head, origin, tmp_path / "head")
    check_speculator(directory, target)
    again = EAGLE3.load(directory, target, torch.float32)
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    configs = [read_json(path / "config.json") for path in (directory, target)]
    assert drafter_size(EAGLE3, *configs).total == sum(p.numel() for p in head.parameters())
    EAGLE3.write_other_formats(directory, target, "tiny", 5, tmp_path / "twins")
    assert not (tmp_path / "twins").exists()


def test_a_head_from_scratch_has_the_type_of_its_target(target: Path, tmp_path: Path) -> None:
    """Also of a target that transformers 5 wrote, with `dtype`."""
    other = shutil.copytree(target, tmp_path / "target")
    config = read_json(target / "config.json")
    config.pop("torch_dtype", None)
    (other / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    origin = scratch(other, draft_vocabulary=20)
    directory = publish(start(origin), origin, tmp_path / "head")
    stored = load_file(directory / "model.safetensors")
    assert {stored[name].dtype for name in ("fc.weight", "lm_head.weight")} == {torch.float32}


@pytest.mark.parametrize("ids", [[], None])
def test_a_base_with_no_list_of_layers_is_exported_with_none(
    target: Path, tmp_path: Path, ids: list[int] | None
) -> None:
    """Model-Optimizer writes []; vLLM would build fc for 0 states from num_aux_hidden_states."""
    nested = {"eagle_aux_hidden_state_layer_ids": ids}
    wide = write_tiny_decoder("LlamaForCausalLM", tmp_path / "wide", num_hidden_layers=8)
    base = write_eagle3_head(wide, tmp_path / "base", eagle_config=nested)
    origin = Origin(wide, base)
    directory = publish(start(origin), origin, tmp_path / "head")
    assert read_json(directory / "config.json") == read_json(base / "config.json")
    check_speculator(directory, wide)


def test_draft_tokens_in_order_of_frequency_are_sorted(target: Path, tmp_path: Path) -> None:
    """The same head, with tokens and rows permuted, drafts the same tokens."""
    base = write_eagle3_head(target, tmp_path / "base", layers=[1, 2])
    other = shutil.copytree(base, tmp_path / "other")

    def permute(tensors: dict[str, Tensor]) -> None:
        place_D = torch.arange(len(tensors["d2t"]))
        order_D = torch.randperm(len(place_D))
        tensors["d2t"] = (tensors["d2t"] + place_D)[order_D] - place_D
        tensors["lm_head.weight"] = tensors["lm_head.weight"][order_D].contiguous()

    edit_tensors(other, permute)
    check_speculator(other, target)
    heads = [EAGLE3.load(path, target, torch.float32) for path in (base, other)]
    assert torch.equal(heads[0].target_ids_D, heads[1].target_ids_D)
    for name, tensor in heads[0].state_dict().items():
        assert torch.equal(tensor, heads[1].state_dict()[name]), name
    edit_tensors(other, lambda tensors: tensors["d2t"][:2].copy_(torch.tensor([5, 4])))
    with pytest.raises(OutriderError, match=r"1 of them twice.*distinct tokens"):
        check_speculator(other, target)


@pytest.mark.parametrize("with_t2d", [True, False])
@pytest.mark.parametrize("first", [1, VOCAB // 2])
def test_a_map_of_token_ids_instead_of_offsets_is_named(
    target: Path, tmp_path: Path, first: int, with_t2d: bool
) -> None:
    """vLLM adds d2t[i] to i; only ids past the vocabulary, or t2d, show the mistake."""
    base = write_eagle3_head(target, tmp_path / "base", layers=[1, 2])

    def absolute(tensors: dict[str, Tensor]) -> None:
        drafts = len(tensors["d2t"])
        ids_D = torch.arange(first, VOCAB)[-drafts:] if first > 1 else 1 + torch.arange(drafts)
        tensors["d2t"] = ids_D
        marks_V = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids_D, True)
        tensors |= {"t2d": marks_V} if with_t2d else {}
        if not with_t2d:
            del tensors["t2d"]

    edit_tensors(base, absolute)
    if first == 1 and not with_t2d:  # 1, 3, 5, ... could be meant
        check_speculator(base, target)
        return
    with pytest.raises(OutriderError, match="d2t holds the target's token ids"):
        check_speculator(base, target)


def test_a_warm_start_keeps_the_bytes_and_the_vocabulary(target: Path, tmp_path: Path) -> None:
    base = write_eagle3_head(target, tmp_path / "base", layers=[1, 2])
    origin = Origin(target, base, HeadConfig(draft_vocabulary=50))
    head = start(origin)
    assert head.target_ids_D is not None
    assert head.target_ids_D.tolist() == list(range(0, 2 * (VOCAB // 4), 2))
    with torch.no_grad():
        head.fc.weight.add_(1.0)
    directory = publish(head, origin, tmp_path / "head")
    before, after = (load_file(path / "model.safetensors") for path in (base, directory))
    assert after.keys() == before.keys() - {"embed_tokens.weight"}
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]) is (name != "fc.weight"), name
    # Only SGLang's key changes, which would name layers 2 and 3 there.
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 1]}}
    assert read_json(directory / "config.json") == read_json(base / "config.json") | nested


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda t: t.pop("midlayer.hidden_norm.weight"), "missing: midlayer.hidden_norm"),
    "unexpected": (lambda t: t.update(extra=torch.ones(1)), "unexpected: extra"),
    "no map": (lambda t: t.pop("d2t"), "no tensor d2t"),
    "map beyond": (lambda t: t["d2t"].add_(VOCAB), "stale vocabulary map"),
    "map repeated": (lambda t: t["d2t"].mul_(-1), "23 of them twice"),
    "NaN": (
        lambda t: t["fc.weight"].view(-1)[3:4].fill_(float("nan")),
        "not a finite number in fc",
    ),
    "shape": (lambda t: t.update({"fc.weight": t["fc.weight"][:, :HIDDEN].clone()}), "has shape"),
    "embedding": (
        lambda t: t["embed_tokens.weight"][4].add_(1),
        "differs from the target's embedding",
    ),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_checkpoint_is_not_loaded(target: Path, tmp_path: Path, mistake: str) -> None:
    change, said = BROKEN[mistake]
    base = write_eagle3_head(target, tmp_path / "base", layers=[1, 2])
    edit_tensors(base, change)
    with pytest.raises(OutriderError, match=said):
        EAGLE3.load(base, target, torch.float32)


@pytest.mark.parametrize("layers", [[0, 1], [2, 1], [1, 1], [1, 3]])
def test_layers_are_those_of_the_target(target: Path, tmp_path: Path, layers: list[int]) -> None:
    base = write_eagle3_head(target, tmp_path / "base", layers=layers)
    with pytest.raises(OutriderError, match="eagle_aux_hidden_state_layer_ids"):
        check_speculator(base, target)
    if 0 not in layers:
        with pytest.raises(OutriderError, match=r"speculator\.head\.layers"):
            EAGLE3.config(read_json(target / "config.json"), HeadConfig(layers=layers), None)


def test_the_most_frequent_tokens_reach_the_share() -> None:
    counts_V = token_counts([torch.tensor([3, 3, 3, 1]), torch.tensor([1, 5, 5, 5, 5, 0])], 8)
    assert counts_V.tolist() == [1, 2, 0, 3, 0, 4, 0, 0]
    for wanted, expected in (
        (0.4, [3, 5]),
        (0.7, [3, 5]),
        (0.71, [1, 3, 5]),
        (0.9, [1, 3, 5]),
        (0.999, [0, 1, 3, 5]),
        (2, [3, 5]),
        (6, [0, 1, 2, 3, 4, 5]),
    ):
        ids_D = chosen_ids(counts_V, wanted)
        assert ids_D is not None and ids_D.tolist() == expected, wanted
        if isinstance(wanted, float):
            assert coverage(counts_V, ids_D) >= wanted
    assert chosen_ids(counts_V, 8) is None
    ids_D = chosen_ids(counts_V, 0.7)
    assert coverage(torch.tensor([5, 0, 0, 4, 0, 1, 0, 0]), ids_D) == pytest.approx(0.5)
    with pytest.raises(OutriderError, match="vocabulary has 8 tokens"):
        chosen_ids(counts_V, 9)
    with pytest.raises(OutriderError, match="no response token"):
        chosen_ids(torch.zeros(8, dtype=torch.long), 0.9)
