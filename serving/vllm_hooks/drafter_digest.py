"""A digest of the drafter's weights as they are in the engine's memory.

vLLM's /weight_checker covers the target only. Two engines with the same flags on the same kind of
machine have the same digest for the same speculator, whether it was loaded at the start or later.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from outrider.speculators.kinds.protocol import TrainableKind

_PIECE = 2**24
"""Values of a tensor on an accelerator that are summed at once."""


@torch.no_grad()
def drafter_digest(drafter: torch.nn.Module, kind: TrainableKind, proposer: Any) -> str:
    """SHA-256 over the drafter's own weights, the target's embedding and head left out.

    Tensors on an accelerator count by two sums over their bytes, so the digest of 12 GB costs two
    passes over the memory. It shows a mistake, not an attack; the files have SHA-256.
    """
    digest = hashlib.sha256()
    for name, tensor in own_tensors(drafter, kind, proposer):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def own_tensors(
    drafter: torch.nn.Module, kind: TrainableKind, proposer: Any
) -> list[tuple[str, Tensor]]:
    """(name, tensor) of parameters, mask states, and linear layers whose weights are packed."""
    found = [*drafter.named_parameters(), *drafter.named_buffers()]
    named = {name: tensor.detach() for name, tensor in found if "rotary" not in name}
    for name, module in drafter.named_modules():
        weight = getattr(module, "weight", None)
        packed = getattr(module, "cpu_linear", None)
        if packed is None or weight is None or weight.numel():
            continue
        # A CPU's kernel has packed the weight and dropped the parameter. Its product with the
        # identity is the transposed weight, exactly.
        width = next(
            getattr(module, key)
            for key in ("input_size_per_partition", "input_size")
            if hasattr(module, key)
        )
        named[f"{name}.weight"] = packed(torch.eye(width, dtype=weight.dtype), weight, None)
    projected = getattr(proposer, "parallel_drafting_hidden_state_tensor", None)
    if projected is not None:
        named["parallel_drafting_hidden_state_tensor"] = projected
    return sorted((n, t) for n, t in named.items() if not kind.stays_with_target(n) and t.numel())


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    if flat.device.type == "cpu":
        return flat.numpy().tobytes()
    return byte_sums(flat).cpu().numpy().tobytes()


def byte_sums(flat: Tensor) -> Tensor:
    """Two int64 sums, modulo 2**64, over a tensor of bytes: of its words, and of words by place.

    Words have 8 bytes, or one where the length is no multiple of that.
    """
    words = flat.view(torch.int64) if len(flat) % 8 == 0 else flat
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for start in range(0, len(words), _PIECE):
        piece = words[start : start + _PIECE].to(torch.int64)
        place = torch.arange(start, start + len(piece), device=flat.device)
        # The place is mixed by a multiplier (Knuth's, 2**32 over the golden ratio) and made odd, so
        # that words that trade places change the sum, and every bit of a word counts.
        sums += torch.stack([piece.sum(), (piece * ((place * 2654435761) | 1)).sum()])
    return sums
