"""The module of a drafter, for training, replay and draft parity.

    drafter = kind.load(directory, target_dir, dtype, device)
    anchors_N, states = drafter.unroll(ends, batch, depth=4)
    drafter.head(ends).logits(states[0])

Kinds with one attention over prefix and drafts (MTP, EAGLE-3, P-EAGLE) are `ChainDrafter`s and
implement `speculators.unroll.Chain`. Other kinds implement their own unroll.

Shapes: B rows, T slots of a row, X values per token that the drafter reads, N anchors, H width
of the state that the head reads, K depths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.unroll import Chain, Slots, unroll_anchors


@dataclass(frozen=True)
class Batch(Slots):
    """One row (B = 1) of a training step."""

    hidden_BTH: Tensor
    """The target's states after the final norm, which the teacher reads.
    May be `inputs_BTX` itself."""
    row: tuple[int, ...]
    """Indices of the row's samples."""
    masks_MW: Tensor | None = None
    """Distinct masks of the row's grammars (`acceptance.mask_forbidden_tokens`); None without
    any."""
    mask_BT: Tensor | None = None
    """The mask of each token; -1 in prompts and in samples without masks."""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The batch in pinned memory, so that copies overlap with GPU work."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        named = {name: value for name, value in vars(self).items() if name != "row"}
        tensors = {name: tensor for name, tensor in named.items() if tensor is not None}
        changed = {id(tensor): change(tensor) for tensor in tensors.values()}
        return Batch(row=self.row, **{n: changed[id(tensor)] for n, tensor in tensors.items()})


class Drafter(nn.Module):
    """Base class of drafter modules; their parameters are trained."""

    width: int
    """Width of the states that the head reads."""
    recompute = False
    """Whether backward recomputes every depth instead of keeping its activations."""
    used_experts = 1.0
    """Share of the routed experts that a token uses."""

    def unroll(self, ends: TargetEnds, slots: Slots, depth: int) -> tuple[Tensor, list[Tensor]]:
        """Drafts `depth` tokens at every anchor, as the serving engine computes them.

        Returns the flat indices [N] of the anchors in B*T and, for each depth s, the states u[s]
        [N, H] that the head reads. The chain at slot i reads the tokens up to i + 1; u[s] predicts
        the token at i + 2 + s. The logged tokens are read (teacher forcing).
        """
        raise NotImplementedError

    def head(self, ends: TargetEnds) -> DraftHead:
        """The head that reads the states: the target's or the drafter's own."""
        raise NotImplementedError

    def input_values(self) -> int:
        """Number of values kept per anchor to recompute a depth; 0 if unsupported."""
        return 0


class ChainDrafter(Drafter):
    """A drafter that implements `Chain`, with one attention over prefix and drafts."""

    mask_token: int | None = None
    """Input token of a parallel drafter after depth 0; None for others."""

    def input_values(self) -> int:
        """Total size of one state, layer input, query, key and value."""
        chain = cast(Chain, self)
        weight = next(self.parameters())
        state = torch.empty(1, chain.width, dtype=weight.dtype, device=weight.device)
        position = torch.zeros(1, dtype=torch.long, device=weight.device)
        x = chain.inputs(state, state, position)
        return sum(values.numel() for values in (state, x, *chain.project(x, position)))

    def unroll(self, ends: TargetEnds, slots: Slots, depth: int) -> tuple[Tensor, list[Tensor]]:
        """Unrolls all anchors at once, depth by depth (speculators/unroll.py)."""
        return unroll_anchors(
            chain=cast(Chain, self),
            ends=ends,
            slots=slots,
            depth=depth,
            mask_token=self.mask_token,
            recompute=self.recompute,
        )
