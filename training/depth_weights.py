"""How much each draft counts in the loss: by its depth, or by how often the engine will ask for it.

    fixed_weights("decay", depth=4, decay=0.6)                 # [K], sums to 1
    visited_weights(judged.accepted_KN, anchors_R)             # [K, N], aligned to targets as the loss is

`visited` weighs the draft at position j after anchor t by v_t a_{t,1} ... a_{t,j-1}: how likely a step of the engine starts at
t, times how likely the drafts before j were accepted (`speculators.acceptance`). That is how often the draft is offered while
the logged responses are served, and a draft that is never offered is not worth a gradient. Summed over a response the weights
are its tokens less one for every step that accepts all K, so tokens are what the loss is divided by: with `tv` the loss is the
expected number of rejections for each token.

The acceptances come from the very pass whose loss they weigh (no gradient flows through them), so the weights are those of the
weights at hand at every step: nothing is cached, nothing goes stale, and a resumed run has nothing to restore.

Shapes: K depths, N targets, R responses, A anchors of a response (padded).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.acceptance import pad_anchors, replay_chain


def fixed_weights(kind: Literal["decay", "uniform"], depth: int, decay: float) -> Tensor:
    """decay^s, or the same for all, for s < depth; normalised to sum 1."""
    weight_K = (decay if kind == "decay" else 1.0) ** torch.arange(depth, dtype=torch.float64)
    return (weight_K / weight_K.sum()).float()


@torch.no_grad()
def visited_weights(accepted_KN: Tensor, anchors_R: Tensor) -> Tensor:
    """How often each draft is offered, [K, N] in float32; `accepted_KN` holds a of each draft, row n of depth s being anchor n - s's.

    `anchors_R` counts the anchors of each response, in the order of N; a response's anchors are consecutive.
    """
    depth, anchors = accepted_KN.shape
    a_NK = torch.stack(
        [F.pad(accepted_KN[s, min(s, anchors) :], (0, min(s, anchors))) for s in range(depth)],
        dim=-1,
    )
    a_RAK = pad_anchors(a_NK.cpu().double(), anchors_R)
    visits_RA = replay_chain(a_RAK, anchors_R).visits_RAK[..., -1]
    index_A1 = torch.arange(a_RAK.shape[1])[:, None]
    inside_RAK = index_A1 + torch.arange(1, depth + 1) <= anchors_R[:, None, None]
    reached_RAK = F.pad(a_RAK[..., :-1], (1, 0), value=1.0).cumprod(-1)
    offered_RAK = visits_RA[..., None] * reached_RAK * inside_RAK
    offered_NK = offered_RAK[index_A1[:, 0] < anchors_R[:, None]]
    return torch.stack(
        [
            F.pad(offered_NK[: anchors - min(s, anchors), s], (min(s, anchors), 0))
            for s in range(depth)
        ]
    ).to(accepted_KN.device, torch.float32)
