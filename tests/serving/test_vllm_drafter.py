"""The unroll against vLLM's own module of the layer, at every depth, without an engine."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.serving.vllm_drafter import draft, forked
from tests.tiny import HIDDEN, VOCAB, save_drafter, tiny_glm, write_tiny_target
from tools.unrolled import unroll

DEPTH, TOKENS = 4, 14


def test_vllm_s_glm_layer_drafts_what_the_unroll_drafts(tmp_path: Path) -> None:
    target, directory = tmp_path / "target", tmp_path / "speculator"
    write_tiny_target(target, config=tiny_glm())
    speculator = load_mtp(target)
    with torch.no_grad():
        for weight in speculator.parameters():
            weight.mul_(1.1)
    save_drafter(speculator, target, directory)
    speculator, ends = load_mtp(directory), load_target_ends(target)
    torch.manual_seed(0)
    token_T, hidden_TH = torch.randint(VOCAB, (TOKENS,)), torch.randn(TOKENS, HIDDEN)
    out, embedding_VH = tmp_path / "states", ends.embedding_VH.float()
    forked(draft, target, directory, token_T.tolist(), embedding_VH, hidden_TH, DEPTH, out)
    row = token_T[None], hidden_TH[None], torch.zeros(1, TOKENS, dtype=torch.long)
    with torch.no_grad():
        states = unroll(speculator, ends, *row, torch.arange(TOKENS)[None], DEPTH)
    found = load_file(out)
    assert len(found) == sum(TOKENS - 2 - s for s in range(DEPTH))
    for name, u_H in found.items():
        depth, anchor = map(int, name.split(".")[1:])
        torch.testing.assert_close(states[depth][0, anchor], u_H, atol=1e-4, rtol=1e-4)
