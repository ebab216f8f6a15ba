"""Loads the target's embedding and head from the shards that hold them.

ends = load_target_ends(target_dir)
"""

from pathlib import Path

import torch

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors, check_tensor_shape
from outrider.speculators.heads import TargetEnds


def load_target_ends(target_dir: Path, dtype: torch.dtype = torch.float32) -> TargetEnds:
    """Loads the head in `dtype`; a narrower stored embedding keeps its dtype.

    If the weights are tied, both have the same values.
    """
    layout = read_layout(target_dir)
    tensors = CheckpointTensors(layout)
    shape = (layout.config["vocab_size"], layout.config["hidden_size"])
    ends = [tensors.read(name, dtype, narrow=True) for name in layout.embedding_and_head]
    for name, end in zip(layout.embedding_and_head, ends, strict=True):
        check_tensor_shape(layout, name, end, shape)
        if not end.is_floating_point():
            raise OutriderError(
                f"{layout.directory}: {name} is {end.dtype}, and its scales are not read; use a"
                " checkpoint whose embedding and head are not quantized"
            )
    embedding, head = ends
    return TargetEnds(embedding, head.to(dtype))
