"""DSpark heads: files and checks. Those of the block are DFlash's."""

from pathlib import Path

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.kinds import kind_of, trainable_kind
from tests.dflash_head import write_dspark_head
from tests.tiny import HIDDEN, edit_tensors

REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "gated bias": (
        {"changed": {"markov_head_type": "gated"}},
        "markov_head_type = gated: Outrider",
    ),
    "no bias": ({"changed": {"markov_rank": 0}}, "markov_rank = 0: "),
    "bonus anchor": ({"changed": {"sample_from_anchor": False}}, "sample_from_anchor = False"),
    "no confidence": (
        {"changed": {"enable_confidence_head": None}},
        "enable_confidence_head = None",
    ),
    "confidence": ({"changed": {"confidence_head_with_markov": False}}, "confidence_head_with"),
    "top k": ({"changed": {"dspark_draft_topk": 64}}, "dspark_draft_topk = 64"),
    "causal": ({"is_causal": True}, "causal: Outrider neither"),
    "no states": ({"use_aux_hidden_state": False}, "use_aux_hidden_state"),
    "layers": ({"num_hidden_layers": 5}, "num_hidden_layers = 5: .* with one layer"),
    "mask": ({"mask_token": 10**6}, "mask_token_id = 1000000"),
    "rank": ({"changed": {"markov_rank": 4}}, r"markov_w1.weight has shape \[97, 16\]"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_head_that_is_not_unrolled_is_refused(
    target: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    directory = write_dspark_head(target, tmp_path / "head", **options)
    kind = kind_of(directory)
    assert kind is trainable_kind("dspark")
    with pytest.raises(OutriderError, match=message):
        kind.check(directory, read_layout(target))


def test_a_confidence_of_another_width_is_refused(target: Path, tmp_path: Path) -> None:
    directory = write_dspark_head(target, tmp_path / "head")
    trainable_kind("dspark").check(directory, read_layout(target))
    narrow = {"confidence_head.proj.weight": torch.zeros(1, HIDDEN).bfloat16()}
    edit_tensors(directory, lambda tensors: tensors.update(narrow))
    with pytest.raises(OutriderError, match=r"proj.weight has shape \[1, 64\]"):
        trainable_kind("dspark").check(directory, read_layout(target))
