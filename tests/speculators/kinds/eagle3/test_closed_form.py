"""The closed-form start against a literal least-squares solution."""

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.kinds.eagle3 import closed_form
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.protocol import Origin
from tests.tiny import HIDDEN, VOCAB

ROWS, TOKENS, PROMPT = 16, 40, 9


def row(seed: int) -> Batch:
    """One sequence; its next state is a noisy linear map of the auxiliary states and the token."""
    generator = torch.Generator().manual_seed(seed)
    token_BT = torch.randint(VOCAB, (1, TOKENS), generator=generator)
    inputs_BTX = torch.randn(1, TOKENS, 2 * HIDDEN, generator=generator)
    of_tokens = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(99))
    hidden_BTH = torch.randn(1, TOKENS, HIDDEN, generator=generator) / 4
    hidden_BTH[:, 1:] += inputs_BTX[:, :-1, :HIDDEN] + of_tokens[token_BT[:, 1:]]
    slot_BT = torch.arange(TOKENS)[None]
    anchor_BT = (slot_BT >= PROMPT - 1) & (slot_BT < TOKENS - 2)
    zeros_BT = torch.zeros(1, TOKENS, dtype=torch.long)
    return Batch(token_BT, inputs_BTX, zeros_BT, slot_BT, anchor_BT, hidden_BTH, (0,))


def test_first_draft_is_the_ridge_regression(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strength = 1e-2
    monkeypatch.setattr(closed_form, "STRENGTHS", (strength,))
    rows = [row(seed) for seed in range(ROWS)]
    origin = Origin(target, None, HeadConfig(draft_vocabulary="all"), rows=lambda: rows)
    settings = torch.float32, "cpu", 0
    head = Eagle3().start(origin, *settings)

    embedding = load_target_ends(target).embedding_VH.float().numpy()
    x = []
    y = []
    for each in rows:
        for anchor in range(PROMPT - 1, TOKENS - 2):
            e = embedding[each.token_ids_BT[0, anchor + 1]]
            e = e / np.sqrt((e**2).mean() + head.shape.norm_eps)
            x.append(np.concatenate([each.inputs_BTX[0, anchor].numpy(), e]))
            y.append(each.hidden_BTH[0, anchor + 1].numpy())
    features = np.array(x)
    outputs = np.array(y)
    penalty = np.diag(np.sqrt(strength * (features**2).sum(0)))
    stacked = np.concatenate([features, penalty]), np.pad(outputs, ((0, len(penalty)), (0, 0)))
    expected = np.linalg.lstsq(*stacked, rcond=None)[0].T

    attention = head.midlayer.self_attn
    of_embedding = attention.o_proj.weight @ attention.v_proj.weight[:, :HIDDEN]
    found = torch.cat([head.fc.weight, of_embedding], dim=1).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)

    again = Eagle3().start(origin, *settings)
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
