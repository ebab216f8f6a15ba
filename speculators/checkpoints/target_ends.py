"""Loads the target's embedding and head from the shards that hold them.

ends = load_target_ends(target_dir)
"""

from pathlib import Path

import torch

from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors, check_tensor_shape
from outrider.speculators.heads import TargetEnds


def load_target_ends(target_dir: Path, dtype: torch.dtype = torch.float32) -> TargetEnds:
    """The head in `dtype`, and the embedding in `dtype` or as stored where that is narrower.

    Tied weights give the same values twice.
    """
    layout = read_layout(target_dir)
    tensors = CheckpointTensors(layout)
    shape = (layout.config["vocab_size"], layout.config["hidden_size"])
    embedding_name, head_name = layout.ends
    embedding = tensors.read_narrow(embedding_name, dtype)
    head = tensors.read(head_name, dtype)
    return TargetEnds(
        check_tensor_shape(layout, embedding_name, embedding, shape),
        check_tensor_shape(layout, head_name, head, shape),
    )
