"""The MTP speculator: one DeepSeek layer over [embedding of the next token ; hidden state], as the serving engine computes it.

    x_i = eh_proj( [ enorm(E(t_{i+1})) ; hnorm(h_i) ] )     embedding first; it is zero where the position is 0
    u_i = norm(block(x_i))                                   post-norm: what the head reads and what the next depth is fed
    q_{i+2} = softmax(W u_i)

E and W are the target's embedding and head (`TargetEnds`): frozen, shared, never trained nor exported.

    speculator, ends = load_mtp(target_dir), load_target_ends(target_dir)    # checkpoint.py
    states = unroll(speculator, ends, token_ids, hidden, sequence, position, depth=4)    # unroll.py

Shapes: N tokens, H hidden, V vocabulary; "..." any leading dimensions.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.speculators.layers.deepseek_layer import DecoderLayer, DeepseekArch, RMSNorm


@dataclasses.dataclass(frozen=True)
class TargetEnds:
    """The target's embedding E and language-model head W; no module, so that no optimizer and no checkpoint sees them."""

    embedding_VH: Tensor
    lm_head_VH: Tensor

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "TargetEnds":
        """A copy on another device or in another dtype; the same tensors where nothing changes."""
        return TargetEnds(
            self.embedding_VH.to(device=device, dtype=dtype),
            self.lm_head_VH.to(device=device, dtype=dtype),
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """E(t), [..., H]."""
        return F.embedding(token_ids, self.embedding_VH)

    def logits(self, state: Tensor) -> Tensor:
        """W h, [..., V], of post-norm states, the target's or the speculator's."""
        return F.linear(state, self.lm_head_VH)


class MTPSpeculator(nn.Module):
    """The trainable part: two norms, a projection of 2H to H, one decoder layer, the final norm."""

    def __init__(self, arch: DeepseekArch):
        super().__init__()
        self.arch = arch
        self.enorm = RMSNorm(arch.hidden, arch.norm_eps)
        self.hnorm = RMSNorm(arch.hidden, arch.norm_eps)
        self.eh_proj = nn.Linear(2 * arch.hidden, arch.hidden, bias=False)
        self.block = DecoderLayer(arch, layer_index=arch.layers)
        self.norm = RMSNorm(arch.hidden, arch.norm_eps)

    def inputs(self, embedding: Tensor, state: Tensor, position: Tensor) -> Tensor:
        """The block's input x from E(t_{i+1}) [..., H], the state at i [..., H] and i's position [...]."""
        # The engine masks the embedding at position 0 (torch.where(positions == 0, 0, embeds)), before enorm.
        embedding = embedding.masked_fill(position[..., None] == 0, 0)
        return self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(state)], dim=-1))
