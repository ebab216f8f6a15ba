"""A loss: the total variation distance between p and q.

1 - TV is the acceptance probability of a draft that is sampled from q (Leviathan et al. 2023,
arXiv 2211.17192, corollary 3.6), so a small TV is a large acceptance.
"""

from torch import Tensor


def total_variation(z_CD: Tensor, p_CD: Tensor) -> Tensor:
    """TV(p, q) [C], from draft logits z and the target's probabilities p of the draft tokens."""
    return (z_CD.softmax(-1) - p_CD).abs().sum(-1) / 2
