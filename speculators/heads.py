"""The target's embedding and head, and the head of a drafter.

    ends = load_target_ends(target_dir)        # checkpoints/target_ends.py
    ends.logits(hidden)                        # the teacher: the target's logits, whole vocabulary
    drafter.head(ends).logits(u)               # the draft's logits, over the draft vocabulary

The two heads may differ: an MTP layer drafts with the target's head, an EAGLE-3 head with its own,
which is trained and covers fewer tokens.

Shapes: H hidden, V target vocabulary, D draft vocabulary; "..." any leading dimensions.
"""

import dataclasses
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class TargetEnds:
    """The target's embedding E and language-model head W, both frozen.

    Not a module, so that optimizers and checkpoints exclude the tensors. Computations use the
    head's dtype. The embedding may keep a narrower stored dtype, since looked-up rows are converted
    exactly: R1's embedding in float32 would take 1.9 GB more.
    """

    embedding_VH: Tensor
    lm_head_VH: Tensor

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "TargetEnds":
        """A copy on another device or in another dtype, sharing unchanged tensors."""
        # Only a narrower embedding is worth keeping: bf16 to float32 is exact, the other way
        # rounds.
        narrower = dtype is not None and dtype.itemsize < self.embedding_VH.itemsize
        return TargetEnds(
            self.embedding_VH.to(device=device, dtype=dtype if narrower else None),
            self.lm_head_VH.to(device=device, dtype=dtype),
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""
        return self.lm_head_VH.dtype

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings E(t), [..., H]."""
        return F.embedding(token_ids, self.embedding_VH).to(self.dtype)

    def logits(self, state: Tensor) -> Tensor:
        """Logits W h, [..., V], of states after the final norm."""
        return F.linear(state, self.lm_head_VH)


@dataclasses.dataclass(frozen=True)
class DraftHead:
    """The draft head's weight rows, and the target token of each row."""

    weight_DH: Tensor
    """The drafter's trained parameter, or a frozen tensor such as the target's."""
    target_ids_D: Tensor | None = None
    """Target token of each draft token, ascending; None for the full vocabulary."""
    trained_fields: ClassVar[tuple[str, ...]] = ("weight_DH",)
    """Fields with trained parameters, which training copies out of the forward pass."""

    def logits(self, state: Tensor) -> Tensor:
        """Draft logits [..., D] of the drafter's states."""
        return F.linear(state, self.weight_DH)

    def auxiliary_loss(self, state: Tensor, acceptance: Tensor) -> Tensor | None:
        """A loss [...] in addition to the drafts' own; None if there is no other output.

        `acceptance` [...] is the expected acceptance of the drafts of `state`.
        """
        return None

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Maps draft tokens to target tokens."""
        return draft_ids if self.target_ids_D is None else self.target_ids_D[draft_ids]

    def from_target(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Maps target tokens to draft tokens (0 if none); also returns a mask of those found."""
        if self.target_ids_D is None:
            return token_ids, torch.ones_like(token_ids, dtype=torch.bool)
        # Draft tokens are in the order of their target ids (`chosen_ids`, `mapped_tokens`).
        index = torch.searchsorted(self.target_ids_D, token_ids.contiguous())
        # searchsorted returns D for a token above all draft tokens; the comparison then rejects it.
        index = index.clamp(max=len(self.target_ids_D) - 1)
        known = self.target_ids_D[index] == token_ids
        return torch.where(known, index, 0), known
