"""Weight of each draft in the loss: by depth, or by how often the engine offers it.

    fixed_weights("decay", depth=4, decay=0.6)                 # [K], sums to 1
    visited_weights(judged.accepted_KN, anchors_R)             # [K, N], aligned with the targets

`visited` gives the draft at position j after anchor t the weight v_t a_{t,1} ... a_{t,j-1}: the
probability that a step of the engine starts at t, times the probability that the drafts before j
are accepted (`speculators.acceptance`). This is how often the draft is offered while the logged
responses are served; a draft that is never offered gets no gradient. Summed over a response, the
weights are its tokens minus one for every step that accepts all K. The loss is therefore divided by
tokens: with `tv` it is the expected number of rejections per token.

The acceptances come from the same pass as the loss, without gradient. The weights are therefore
always current: nothing is cached, and a resumed run has nothing to restore.

Shapes: K depths, N targets, R responses, A anchors of a response (padded).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.acceptance import pad_anchors, replay_chain


def fixed_weights(kind: Literal["decay", "uniform"], depth: int, decay: float) -> Tensor:
    """decay^s for s < depth, or the same for all; normalized to sum to 1."""
    weight_K = (decay if kind == "decay" else 1.0) ** torch.arange(depth, dtype=torch.float64)
    return (weight_K / weight_K.sum()).float()


@torch.no_grad()
def visited_weights(accepted_KN: Tensor, anchors_R: Tensor) -> Tensor:
    """How often each draft is offered, [K, N] in float32.

    `accepted_KN` has a of each draft; row n of depth s belongs to anchor n - s. `anchors_R` counts
    the anchors of each response, in the order of N; a response's anchors are consecutive.
    """
    depth = len(accepted_KN)
    a_NK = torch.stack([_shifted(accepted_KN[s], -s) for s in range(depth)], dim=-1)
    a_RAK = pad_anchors(a_NK.cpu().double(), anchors_R)
    visits_RA = replay_chain(a_RAK, anchors_R).visits_RAK[..., -1]
    index_A1 = torch.arange(a_RAK.shape[1])[:, None]
    inside_RAK = index_A1 + torch.arange(1, depth + 1) <= anchors_R[:, None, None]
    reached_RAK = F.pad(a_RAK[..., :-1], (1, 0), value=1.0).cumprod(-1)
    offered_RAK = visits_RA[..., None] * reached_RAK * inside_RAK
    offered_NK = offered_RAK[index_A1[:, 0] < anchors_R[:, None]]
    offered_KN = torch.stack([_shifted(offered_NK[:, s], s) for s in range(depth)])
    return offered_KN.to(accepted_KN.device, torch.float32)


def _shifted(values_N: Tensor, by: int) -> Tensor:
    """Moves values `by` places to the right (left if negative) and fills with zeros."""
    by = max(-len(values_N), min(by, len(values_N)))
    if by < 0:
        return F.pad(values_N[-by:], (0, -by))
    return F.pad(values_N[: len(values_N) - by], (by, 0))
