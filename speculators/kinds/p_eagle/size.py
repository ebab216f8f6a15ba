"""Parameters and activations of a P-EAGLE head.

size = parallel_size(EagleShape.read(config, target_config, path), ParallelHead)

An EAGLE-3 head's, but every slot after the first reads the same row, which is projected once for
all anchors; only its rotation differs. fc reads the mask's states too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.eagle3.size import eagle_size
from outrider.speculators.size import DrafterSize

if TYPE_CHECKING:
    from torch import nn


def parallel_size(
    shape: EagleShape, module: "Callable[[EagleShape, None], nn.Module]"
) -> DrafterSize:
    """The size of a head of this shape."""
    keys, values = shape.heads * shape.key_dim, shape.heads * shape.value_dim
    slot = 4 * shape.head_dim + 2 * keys + values
    return eagle_size(shape, module, deeper=slot, chained=False, once=())
