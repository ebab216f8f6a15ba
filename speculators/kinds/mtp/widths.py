"""Widths of an MTP layer, which sizes and activations are counted from. No torch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MTPWidths:
    """The widths that fix the layer's shapes (names as in deepseek_layer.py)."""

    vocab: int
    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int
    """Of the shared experts together; of the whole MLP where the layer is dense."""

    @property
    def router(self) -> int:
        """The router's weights; its correction bias is a buffer and not trained."""
        return self.experts * self.hidden
