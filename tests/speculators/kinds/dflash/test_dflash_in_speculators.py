"""The twin of a DFlash head in PyPI's `speculators`: the same logits of every draft."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.common.files import read_json
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.dflash.kind import DFlash
from tests.dflash_head import write_dflash_head
from tests.speculators.kinds.eagle3.test_twin_in_speculators import (
    their_python,  # noqa: F401 (a fixture)
)

DEPTH, TOKENS = 5, 90


@pytest.mark.slow
def test_the_library_computes_the_same_drafts(
    their_python: Path,  # noqa: F811
    nano_r1: Path,
    tmp_path: Path,
) -> None:
    kind, head = DFlash(), write_dflash_head(nano_r1, tmp_path / "head", layers=(2, 8, 13))
    kind.write_other_formats(head, nano_r1, str(nano_r1), DEPTH, tmp_path)
    torch.manual_seed(1)
    inputs_TX = torch.randn(TOKENS, 3 * read_json(nano_r1 / "config.json")["hidden_size"])
    tokens_T, anchors_N = torch.randint(0, 4000, (TOKENS,)), torch.tensor([3, 10, 40, 41, 70])
    given = {"tokens": tokens_T, "inputs": inputs_TX, "known": anchors_N + 1}
    states, out = tmp_path / "states.safetensors", tmp_path / "logits.safetensors"
    save_file(given, states)
    script = Path(__file__).with_name("blocks_in_speculators.py")
    words = [their_python, script, tmp_path / "speculators", states, out]
    # From another folder, where no package of this checkout can be taken for the library.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(list(map(str, words)), check=True, cwd=tmp_path, env=environment)
    theirs = load_file(out)

    ours, ends = kind.load(head, nano_r1, torch.float32), load_target_ends(nano_r1)
    anchor_BT = torch.zeros(1, TOKENS, dtype=torch.bool)
    anchor_BT[0, anchors_N] = True
    with torch.no_grad():
        _, drafts = ours.unroll(
            ends,
            tokens_T[None],
            inputs_TX[None],
            torch.zeros(1, TOKENS).long(),
            torch.arange(TOKENS)[None],
            anchor_BT,
            DEPTH,
        )
        logits_NKD = torch.stack([ours.head(ends).logits(u) for u in drafts], dim=1)
    assert ours.target_ids_D is not None
    assert torch.equal(theirs["d2t"], ours.target_ids_D - torch.arange(len(ours.target_ids_D)))
    torch.testing.assert_close(logits_NKD, theirs["logits"], atol=1e-4, rtol=0)
