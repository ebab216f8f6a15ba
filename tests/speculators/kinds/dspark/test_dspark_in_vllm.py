"""A DSpark head from scratch in vLLM's own model: every weight is loaded, and the walk is equal."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.protocol import Origin
from tests.tiny import HIDDEN, VOCAB

ANCHORS, DEPTH, DRAFTS = 20, 4, 40


@torch.no_grad()
@pytest.mark.slow
def test_vllm_loads_all_of_an_export_and_drafts_the_same(target: Path, tmp_path: Path) -> None:
    """Over states of the block that are given; the engine's own states need a GPU (tests/gpu)."""
    kind = trainable_kind("dspark")
    counts = torch.arange(VOCAB)
    origin = Origin(
        target, None, HeadConfig(draft_vocabulary=DRAFTS, layers=(1, 2)), lambda: counts[None]
    )
    head = kind.start(origin, torch.float32, "cpu", seed=1)
    state = head.state_dict()
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        state[name].mul_(4)  # biases as large as the block's logits
    exported = tmp_path / "head"
    kind.write(kind.trained_tensors(head, state), origin, exported)
    us_NKH = torch.randn(ANCHORS, DEPTH, HIDDEN)
    known_N = torch.randint(0, VOCAB, (ANCHORS,))
    given = tmp_path / "states.safetensors"
    out = tmp_path / "out.safetensors"
    save_file({"us": us_NKH, "known": known_N}, given)
    modules = "tests.serving.vllm_hooks.v2_on_cpu", "tests.speculators.kinds.dspark.walk_in_vllm"
    words = [sys.executable, "-m", *modules, target, exported, given, out]
    subprocess.run(list(map(str, words)), check=True)
    theirs = load_file(out)

    head = kind.load(exported, target, torch.float32)
    ends = load_target_ends(target)
    own = head.head(ends)
    previous_N = known_N
    for s in range(DEPTH):
        embed_NR = head.markov_head.markov_w1(previous_N)
        state_NX = torch.cat([us_NKH[:, s], embed_NR], dim=-1)
        previous_N = own.to_target(own.logits(state_NX).argmax(-1))
        assert torch.equal(previous_N, theirs["drafts"][:, s])
        confidence_N = own.confidence(state_NX).sigmoid()
        torch.testing.assert_close(confidence_N, theirs["confidences"][:, s], atol=1e-5, rtol=0)
