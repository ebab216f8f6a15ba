"""P-EAGLE heads: slots against decoding them literally, files, and what vLLM is given."""

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
from outrider.speculators.kinds.p_eagle.kind import PEagle
from outrider.speculators.kinds.p_eagle.layer import ParallelHead
from tests.eagle3_head import write_eagle3_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import (
    DEPTH,
    LAYERS,
    LiteralEngine,
    slot_differences,
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
    return slot_differences(head, engine)


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
            wrong.mask_token = MASK + 1
        else:
            wrong.mask_hidden.data.mul_(-1)
        found_K = differences(wrong, target, directory)
        assert found_K[0] < 2e-4 and found_K[1:].min() > 5e-3


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
