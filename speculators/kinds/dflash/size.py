"""Parameters and activations of a DFlash head.

size = dflash_size(read_shape(config, target_config, path), DFlashHead)

Differences from an EAGLE-3 head: the layer is as wide as the state and norms queries and keys by
head; a token of the context has a key and a value and no query; the mask slots read one row, which
is projected once for all anchors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.eagle3.size import eagle_size
from outrider.speculators.size import DrafterSize

if TYPE_CHECKING:
    from torch import nn


def dflash_size(
    shape: EagleShape, module: "Callable[[EagleShape, None], nn.Module]"
) -> DrafterSize:
    """The size of a head of this shape."""
    s = shape
    keys, values = s.heads * s.key_dim, s.heads * s.value_dim
    key_and_value = 3 * s.kv_heads * s.head_dim + keys + values
    slot = 2 * keys + values
    # Once for each token: the context, and the slot of the token that is known.
    first = s.states + 6 * s.hidden + 2 * key_and_value + slot
    into = ("k_proj", "v_proj")
    return eagle_size(s, module, first=first, deeper=slot, into=into, chained=False)
