"""Parameters and activations of an EAGLE-3 head, from its shape.

size = eagle_size(EagleShape.read(config, target_config, path), EagleHead)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.size import DrafterSize, meta_shapes

if TYPE_CHECKING:
    from torch import nn


def eagle_size(
    shape: EagleShape, module: "Callable[[EagleShape, None], nn.Module]", **other: Any
) -> DrafterSize:
    """The size of a head as this module; `other` replaces fields that differ."""
    s = shape
    keys, values = s.heads * s.key_dim, s.heads * s.value_dim
    ranks = (s.latent["q_lora_rank"] or 0) + s.kv_rank if s.latent else 0
    # The layer reads the norms of embedding and state.
    projected = 8 * s.hidden + 4 * ranks + keys + values
    residual = 3 * s.hidden if s.norm_before_residual else 0
    fields: dict[str, Any] = {
        "shapes": meta_shapes(lambda: module(s, None)),
        "vocab": s.vocab,
        "hidden": s.hidden,
        "state_values": s.target_hidden + s.states,
        "heads": s.heads,
        "key_values": keys,
        "value_values": values,
        "first": s.states * (1 + s.fc_norm + s.norm_before_fc) + projected,
        "deeper": projected + keys + values,
        "mlp": 4 * s.intermediate + residual,
        "once": ("fc",),
    }
    return DrafterSize(**fields | other)
