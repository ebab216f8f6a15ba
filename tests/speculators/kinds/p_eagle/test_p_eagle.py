"""P-EAGLE heads: slots against decoding them literally; ../test_heads.py has the rest."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.p_eagle.kind import PEagle
from outrider.speculators.kinds.p_eagle.layer import ParallelHead
from tests.eagle3_head import write_eagle3_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import LAYERS, LiteralEngine
from tests.speculators.literal_engine import DEPTH, differences

MASK = 2
KIND = PEagle()


class LiteralSlots(LiteralEngine):
    """Computes the slots of one anchor after the other, with a cache that is rolled back."""

    def states(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (slot, anchor) that has a token to predict."""
        cache = DynamicCache()
        found = {}
        unknown = self.first(self.tensors["mask_hidden"].flatten())
        for i in range(len(tokens) - 2):
            found[0, i] = self.step(tokens[i + 1], self.first(aux_TX[i]), i, cache)[1]
            for s in range(1, DEPTH):
                u = self.step(MASK, unknown, i + s, cache)[1]
                if i + 2 + s < len(tokens):
                    found[s, i] = u
            cache.crop(i + 1)
        return found


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
    directory = write_eagle3_head(
        target, tmp_path / "head", layers=LAYERS, pard_token=MASK, **options
    )
    head = KIND.load(directory, target, torch.float32)
    engine = LiteralSlots(directory, load_target_ends(target))
    assert isinstance(head, ParallelHead)
    assert differences(head, engine).max() < 2e-4
    for changed in ("mask_token", "mask_hidden"):
        wrong = KIND.load(directory, target, torch.float32)
        if changed == "mask_token":
            wrong.mask_token = MASK + 1
        else:
            wrong.mask_hidden.data.mul_(-1)
        found_K = differences(wrong, engine)
        assert found_K[0] < 2e-4 and found_K[1:].min() > 5e-3
