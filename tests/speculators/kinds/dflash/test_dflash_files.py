"""DFlash heads: files, checks, and what vLLM is given."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.kinds import kind_of, trainable_kind
from outrider.speculators.kinds.dflash.kind import DFlash
from tests.dflash_head import write_dflash_head
from tests.tiny import VOCAB

KIND = DFlash()


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "layers": ({"num_hidden_layers": 2}, "num_hidden_layers = 2: .* of one layer.*CPU"),
    "causal": ({"section": {"causal": True}}, "causal: Outrider neither"),
    "sliding": ({"layer_types": ["sliding_attention"]}, "layer_types"),
    "window": ({"section": {"use_swa": True}}, "use_swa"),
    "sink": ({"section": {"attention_sink_bias": True}}, "attention_sink_bias"),
    "bias": ({"attention_bias": True}, "attention_bias"),
    "rope": ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type"),
    "mask": ({"mask_token": VOCAB}, f"mask_token_id = {VOCAB}: not a token of the target"),
    "deeper": (
        {"layers": (1, 3)},
        r"target_layer_ids \+ 1 = \[1, 3\], but .* 2 layers",
    ),
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
