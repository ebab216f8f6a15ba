"""Loads the target's embedding and head from the shards that hold them.

ends = load_target_ends(target_dir)
"""

from pathlib import Path

import torch

from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors, check_tensor_shape
from outrider.speculators.heads import TargetEnds


def load_target_ends(target_dir: Path, dtype: torch.dtype = torch.float32) -> TargetEnds:
    """The embedding and the head in `dtype`; tied weights give the same values twice."""
    layout = read_layout(target_dir)
    tensors = CheckpointTensors(layout)
    shape = (layout.config["vocab_size"], layout.config["hidden_size"])
    embedding, head = (
        check_tensor_shape(layout, name, tensors.read(name, dtype), shape) for name in layout.ends
    )
    return TargetEnds(embedding, head)
