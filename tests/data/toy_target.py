"""A target without a model: fixed logits, sure at some positions and uncertain at others.

    toy = ToyTarget()
    toy.evidence(toy.drawn(0.6, 0.95))      # the sums that capture computes for on-policy text

Shapes: S sequences, T tokens each, N = S x T positions, V vocabulary.
"""

import numpy as np
import torch

from outrider.data.on_policy.evidence import OnPolicyEvidence
from outrider.serving.logged_text import HEAD
from outrider.serving.token_scores import COLUMNS, token_scores
from outrider.speculators.acceptance import target_distribution

SEQUENCES, LENGTH, VOCAB = 60, 80, 64
SURE_SHARE = 0.7


class ToyTarget:
    """`seed` draws the logits; another seed is another target."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        positions = SEQUENCES * LENGTH
        self.logits_NV = 1.5 * self.noise(positions, VOCAB)
        self.sure_N = torch.rand(positions, generator=self.generator) < SURE_SHARE
        best_N = torch.randint(0, VOCAB, (positions,), generator=self.generator)
        self.logits_NV[self.sure_N, best_N[self.sure_N]] += 18.0
        self.head_N = torch.arange(positions) % LENGTH < HEAD

    def noise(self, *shape: int) -> torch.Tensor:
        """Standard normal."""
        return torch.randn(*shape, generator=self.generator)

    def some(self, share: float) -> torch.Tensor:
        """[N] true at that share of the positions, at random."""
        return torch.rand(len(self.logits_NV), generator=self.generator) < share

    def drawn(
        self, temperature: float = 0.6, top_p: float = 0.95, logits_NV: torch.Tensor | None = None
    ):
        """[N] tokens sampled from the target, or from other logits."""
        logits_NV = self.logits_NV if logits_NV is None else logits_NV
        temperature_N = torch.full((len(logits_NV),), temperature)
        q_NV = target_distribution(logits_NV, temperature_N, torch.tensor([top_p]))
        return torch.multinomial(q_NV, 1, generator=self.generator)[:, 0]

    def any_token(self) -> torch.Tensor:
        """[N] tokens independent of the target."""
        return torch.randint(0, VOCAB, (len(self.logits_NV),), generator=self.generator)

    def evidence(
        self,
        token_N: torch.Tensor,
        temperature: float = 0.6,
        top_p: float = 0.95,
        retokenized: bool = False,
    ) -> OnPolicyEvidence:
        """Evidence of text logged with these sampling settings."""
        sampling = (torch.full((len(token_N),), value) for value in (temperature, top_p, 0.0))
        scores_STC = (
            token_scores(self.logits_NV, token_N, *sampling).double().view(SEQUENCES, LENGTH, -1)
        )
        sums_SPC = torch.stack([scores_STC[:, :HEAD].sum(1), scores_STC[:, HEAD:].sum(1)], dim=1)
        return OnPolicyEvidence(
            columns=list(COLUMNS),
            sums_SPC=sums_SPC.numpy(),
            temperature_S=np.full(SEQUENCES, temperature),
            top_p_S=np.full(SEQUENCES, top_p),
            retokenized_S=np.full(SEQUENCES, retokenized),
        )


def together(*groups: OnPolicyEvidence) -> OnPolicyEvidence:
    """The sequences of all groups."""
    names = ("sums_SPC", "temperature_S", "top_p_S", "retokenized_S")
    return OnPolicyEvidence(
        groups[0].columns,
        *(np.concatenate([getattr(group, name) for group in groups]) for name in names),
    )
