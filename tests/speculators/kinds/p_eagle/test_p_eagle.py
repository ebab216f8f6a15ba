"""P-EAGLE heads: slots against decoding them literally, files, and what vLLM is given."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import kind_of, trainable_kind
from outrider.speculators.kinds.p_eagle.kind import PEagle
from outrider.speculators.kinds.p_eagle.layer import ParallelHead
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.unroll import valid_BT
from tests.eagle3_head import write_eagle3_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import (
    DEPTH,
    LAYERS,
    LiteralEngine,
    packed_row,
)
from tests.tiny import VOCAB

MASK = 2
KIND = PEagle()


def written(target: Path, directory: Path, **options: object) -> Path:
    return write_eagle3_head(target, directory, layers=LAYERS, pard_token=MASK, **options)


class LiteralSlots(LiteralEngine):
    """Computes the slots of one anchor after the other, with a cache that is rolled back."""

    def slots(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (slot, anchor) that has a token to predict."""
        cache, found = DynamicCache(), {}
        unknown = self.first(self.tensors["mask_hidden"].flatten())
        for i in range(len(tokens) - 2):
            found[0, i] = self.step(tokens[i + 1], self.first(aux_TX[i]), i, cache)[1]
            for s in range(1, DEPTH):
                u = self.step(MASK, unknown, i + s, cache)[1]
                if i + 2 + s < len(tokens):
                    found[s, i] = u
            cache.crop(i + 1)
        return found


def differences(head: ParallelHead, target: Path, directory: Path) -> Tensor:
    """Largest difference of the states by slot, [K], over every anchor of the packed row."""
    config = json.loads((directory / "config.json").read_text())
    ends = load_target_ends(target)
    engine = LiteralSlots(config, load_file(directory / "model.safetensors"), ends)
    token_BT, aux_BTX, sequence_BT, position_BT = packed_row()
    anchor_BT = valid_BT(sequence_BT, 0)
    with torch.no_grad():
        anchors_N, states = head.unroll(
            ends, token_BT, aux_BTX, sequence_BT, position_BT, anchor_BT, DEPTH
        )
        place = {slot: n for n, slot in enumerate(anchors_N.tolist())}
        worst_K, compared = torch.zeros(DEPTH), 0
        for number in sequence_BT[sequence_BT >= 0].unique().tolist():
            slots = (sequence_BT[0] == number).nonzero().squeeze(1)
            of_row = engine.slots(token_BT[0, slots].tolist(), aux_BTX[0, slots])
            for (s, i), u in of_row.items():
                difference = (states[s][place[int(slots[i])]] - u).abs().max()
                worst_K[s] = torch.maximum(worst_K[s], difference)
                compared += 1
    assert compared == sum(int(valid_BT(sequence_BT, s).sum()) for s in range(DEPTH))
    return worst_K


HEADS: dict[str, dict[str, object]] = {
    "plain": {},
    "grouped": {"heads": 4, "kv_heads": 2},
    "fc norms": {"fc_norm": True},
    "norm before residual": {"norm_before_residual": True},
}


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_unroll_is_what_the_engine_computes(
    target: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    directory = written(target, tmp_path / "head", **options)
    head = KIND.load(directory, target, torch.float32)
    assert isinstance(head, ParallelHead)
    assert differences(head, target, directory).max() < 2e-4
    for changed in ("mask_token", "mask_hidden"):
        wrong = KIND.load(directory, target, torch.float32)
        if changed == "mask_token":
            wrong.shape = dataclasses.replace(wrong.shape, mask_token=MASK + 1)
        else:
            wrong.mask_hidden.data.mul_(-1)
        found_K = differences(wrong, target, directory)
        assert found_K[0] < 2e-4 and found_K[1:].min() > 5e-3


def test_gradients_reach_every_parameter(target: Path, tmp_path: Path) -> None:
    head = KIND.load(written(target, tmp_path / "head", fc_norm=True), target, torch.float32)
    ends, row = load_target_ends(target), packed_row()
    _, states = head.unroll(ends, *row, valid_BT(row[2], 0), DEPTH)
    sum(head.head(ends).logits(u).square().sum() for u in states).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_head_is_recognized_written_and_read_again(target: Path, tmp_path: Path) -> None:
    """From scratch with the traffic's draft vocabulary, then over a base."""
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[5, 3, 40]] = torch.tensor([9, 7, 5])
    origin = Origin(target, None, HeadConfig(draft_vocabulary=3), lambda: counts)
    head = KIND.start(origin, torch.float32, "cpu", seed=1)
    assert head.mask_hidden.std() > 0.3
    KIND.write(KIND.trained(head, head.state_dict()), origin, tmp_path / "scratch")
    config = json.loads((tmp_path / "scratch" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["pard_token"] == 1  # the target's end: it has no padding token
    assert kind_of(tmp_path / "scratch") is trainable_kind("p_eagle")
    assert kind_of(write_eagle3_head(target, tmp_path / "eagle3")) is trainable_kind("eagle3")
    KIND.check(tmp_path / "scratch", read_layout(target))
    over = Origin(target, tmp_path / "scratch")
    warm = KIND.start(over, torch.float32, "cpu", seed=2)
    KIND.write(KIND.trained(warm, warm.state_dict()), over, tmp_path / "again")
    assert KIND.swappable(tmp_path / "scratch", tmp_path / "again")
    KIND.write_other_formats(tmp_path / "again", target, "tiny", 5, tmp_path / "twins")
    twin = tmp_path / "twins" / "speculators"
    published = json.loads((twin / "config.json").read_text())
    assert (published["speculators_model_type"], published["mask_token_id"]) == ("peagle", 1)
    assert "pard_token" not in published["transformer_layer_config"]
    KIND.check(twin, read_layout(target))
    assert kind_of(twin) is trainable_kind("p_eagle")
    one, two = (KIND.load(path, target, torch.float32) for path in (tmp_path / "again", twin))
    assert one.shape == two.shape and one.state_dict().keys() == two.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name
    del published["norm_before_residual"]  # the format's default
    (twin / "config.json").write_text(json.dumps(published))
    assert KIND.load(twin, target, torch.float32).shape == one.shape
    other = tmp_path / "other"
    KIND.write(KIND.trained(warm, warm.state_dict()), origin, other)
    changed = json.dumps(config | {"pard_token": 3})
    (other / "config.json").write_text(changed)
    assert not KIND.swappable(tmp_path / "scratch", other)  # the engine reads it at its start
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (
            tmp_path / "scratch" / name
        ).read_bytes()
    assert dict(KIND.swap_tensors(tmp_path / "again"))["mask_hidden"].shape == (1, 1, 2 * 64)


def test_vllm_is_given_a_fixed_number_of_parallel_drafts(tmp_path: Path) -> None:
    assert KIND.abilities.fixed_k
    assert KIND.vllm_settings(tmp_path, 5, "greedy", None) == {
        "method": "eagle3",
        "model": str(tmp_path),
        "num_speculative_tokens": 5,
        "draft_sample_method": "greedy",
        "parallel_drafting": True,
    }
    with pytest.raises(OutriderError, match="drafts 5 tokens in every step"):
        KIND.vllm_settings(tmp_path, 5, "greedy", [(1, 4, 5), (5, 8, 2)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mla": True}, "a head with DeepSeek's attention that drafts in parallel"),
        ({"pard_token": VOCAB}, f"pard_token = {VOCAB}: not a token of the target's vocabulary"),
        ({"mask_values": 7}, "mask_hidden"),
    ],
)
def test_a_head_that_vllm_would_not_serve_is_refused(
    target: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    directory = write_eagle3_head(
        target, tmp_path / "head", layers=LAYERS, **{"pard_token": MASK, **options}
    )
    with pytest.raises(OutriderError, match=message):
        KIND.check(directory, read_layout(target))
