"""Bytes that autograd keeps of an unroll: what the counted activations are compared with.

kept_bytes(drafter, ends, [(120, 60), (40, 5)], inputs=256, depth=4)
"""

from collections.abc import Sequence

import torch

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.drafter import Drafter


def kept_bytes(
    drafter: Drafter,
    ends: TargetEnds,
    sequences: Sequence[tuple[int, int]],
    inputs: int,
    depth: int,
) -> int:
    """Bytes of the distinct storages of saved tensors, weights and target ends excluded.

    `sequences` are (tokens, anchors) of one row; its random inputs have `inputs` values a token.
    """
    tokens = sum(length for length, _ in sequences)
    lengths = torch.tensor([length for length, _ in sequences])
    sequence_BT = torch.arange(len(sequences)).repeat_interleave(lengths)[None]
    position_BT = torch.cat([torch.arange(length) for length, _ in sequences])[None]
    anchor_BT, start = torch.zeros(1, tokens, dtype=torch.bool), 0
    for length, anchors in sequences:
        anchor_BT[0, start + length - 2 - anchors : start + length - 2] = True
        start += length
    inputs_BTX = torch.randn(1, tokens, inputs).bfloat16()
    weights = [*drafter.parameters(), ends.embedding_VH, ends.lm_head_VH]
    ours = {tensor.untyped_storage().data_ptr() for tensor in weights}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_BT = torch.randint(0, len(ends.embedding_VH), (1, tokens))
        _, states = drafter.unroll(
            ends, token_BT, inputs_BTX, sequence_BT, position_BT, anchor_BT, depth
        )
    assert states[-1].requires_grad
    return sum(storage.nbytes() for storage in kept.values())
