"""The twins that an export writes, in PyPI's `speculators`: the same drafts.

The tests need a separate environment, which they make in build/ (a minute), or take
the Python that OUTRIDER_SPECULATORS_PYTHON names.
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from uv import find_uv_bin

from outrider.common.files import read_json
from outrider.pipeline.recipe.shipped import shipped_heads
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.eagle3.shape import SPECULATORS_VERSION as VERSION
from outrider.speculators.unroll import Slots, valid_BT
from tests.dflash_head import write_dflash_head
from tests.shipped_traffic import general_rows
from tools.nano_r1.states import ComputedStates

HERE = Path(__file__).parent
DEPTH, TOKENS = 5, 90
HEADS = shipped_heads()


@pytest.fixture(scope="module")
def their_python() -> Path:
    """The Python of an environment with the library."""
    if given := os.environ.get("OUTRIDER_SPECULATORS_PYTHON"):
        return Path(given)
    folder = HERE.parents[2] / "build" / f"speculators-{VERSION}"
    python = folder / "bin" / "python"
    uv = find_uv_bin()
    overrides = HERE.parents[2] / "requirements" / "overrides-cpu.txt"
    environment = {"UV_INDEX_STRATEGY": "unsafe-best-match"} | os.environ
    if links := os.environ.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", ",".join(links.split()))
    if not python.is_file():
        subprocess.run([uv, "venv", "--quiet", folder], check=True)
    words = [uv, "pip", "install", "--quiet", "--python", python, "--override", overrides]
    done = subprocess.run(
        [*words, f"speculators=={VERSION}"], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"speculators {VERSION} cannot be installed here: {done.stderr[-500:]}")
    return python


def in_library(
    python: Path, script: str, given: dict[str, torch.Tensor], folder: Path, *words: str
) -> dict[str, torch.Tensor]:
    """What a script computes with the library from these tensors, for the twin in the folder."""
    states = folder / "states.safetensors"
    out = folder / "drafts.safetensors"
    save_file(given, states)
    command = [python, HERE / script, folder / "speculators", states, *words, out]
    # From another folder, where no package of this checkout can be taken for the library.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(list(map(str, command)), check=True, cwd=folder, env=environment)
    return load_file(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_library_drafts_the_same_tokens(
    name: str, their_python: Path, nano_r1: Path, tmp_path: Path
) -> None:
    """At every anchor and depth of logged responses, from the same states."""
    kind = trainable_kind_of(HEADS[name])
    configs = (read_json(path / "config.json") for path in (HEADS[name], nano_r1))
    spec = kind.features(*configs)
    rows = general_rows(every=60)
    states = ComputedStates(nano_r1, rows, [int(n.removeprefix("layer_")) for n in spec.names])
    read = {row["sequence_id"]: states.read(row["sequence_id"]) for row in rows}
    given = {f"tokens.{key}": each.token_ids for key, each in read.items()}
    given |= {f"inputs.{key}": spec.inputs(each) for key, each in read.items()}
    kind.write_other_formats(HEADS[name], nano_r1, str(nano_r1), DEPTH, tmp_path)
    theirs = in_library(their_python, "eagle3/in_speculators.py", given, tmp_path, str(DEPTH))

    head = kind.load(HEADS[name], nano_r1, torch.float32)
    ends = load_target_ends(nano_r1)
    ids_D = head.head(ends).target_ids_D
    assert ids_D is not None
    assert torch.equal(theirs.pop("d2t"), ids_D - torch.arange(len(ids_D)))
    equal = total = 0
    for key, each in read.items():
        length = len(each.token_ids)
        sequence_BT = torch.zeros(1, length).long()
        position_BT = torch.arange(length)[None]
        with torch.no_grad():
            read_BTX = spec.inputs(each)[None]
            anchor_BT = valid_BT(sequence_BT, 0)
            row = each.token_ids.long()[None], read_BTX, sequence_BT, position_BT, anchor_BT
            anchors_N, drafts = head.unroll(ends, Slots(*row), DEPTH)
        for depth, u_NH in enumerate(drafts):
            keep_N = anchors_N < length - 2 - depth
            ours_ND = head.head(ends).logits(u_NH[keep_N]).log_softmax(-1)
            theirs_ND = theirs[key][depth, anchors_N[keep_N]]
            torch.testing.assert_close(ours_ND, theirs_ND, atol=2e-3, rtol=0)
            equal += int((ours_ND.argmax(-1) == theirs_ND.argmax(-1)).sum())
            total += len(ours_ND)
    print(f"{name}: {equal} of {total} draft tokens equal")
    assert total > 5000 and equal == total


@pytest.mark.slow
def test_the_library_computes_the_same_logits_of_a_dflash_head(
    their_python: Path, nano_r1: Path, tmp_path: Path
) -> None:
    head = write_dflash_head(nano_r1, tmp_path / "head", layers=(2, 8, 13))
    kind = trainable_kind_of(head)
    kind.write_other_formats(head, nano_r1, str(nano_r1), DEPTH, tmp_path)
    torch.manual_seed(1)
    inputs_TX = torch.randn(TOKENS, 3 * read_json(nano_r1 / "config.json")["hidden_size"])
    tokens_T = torch.randint(0, 4000, (TOKENS,))
    anchors_N = torch.tensor([3, 10, 40, 41, 70])
    given = {"tokens": tokens_T, "inputs": inputs_TX, "known": anchors_N + 1}
    theirs = in_library(their_python, "dflash/blocks_in_speculators.py", given, tmp_path)

    ours = kind.load(head, nano_r1, torch.float32)
    ends = load_target_ends(nano_r1)
    anchor_BT = torch.zeros(1, TOKENS, dtype=torch.bool)
    anchor_BT[0, anchors_N] = True
    with torch.no_grad():
        places = torch.zeros(1, TOKENS).long(), torch.arange(TOKENS)[None], anchor_BT
        _, drafts = ours.unroll(ends, Slots(tokens_T[None], inputs_TX[None], *places), DEPTH)
        logits_NKD = torch.stack([ours.head(ends).logits(u) for u in drafts], dim=1)
    assert ours.target_ids_D is not None
    assert torch.equal(theirs["d2t"], ours.target_ids_D - torch.arange(len(ours.target_ids_D)))
    torch.testing.assert_close(logits_NKD, theirs["logits"], atol=1e-4, rtol=0)
