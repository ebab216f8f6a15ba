"""Packs embedding and head on a CPU at their first multiplication, instead of when they are loaded.

vLLM 0.32 keeps two copies of each matrix over the vocabulary on a CPU: the weights, and oneDNN's
packed form of them. An embedding is only looked up, and a drafter's own embedding and head are
replaced by the target's right after loading, so three of four packed copies are never used. At R1's
widths each takes 1.85 GB. Packing at the first use leaves the target's head.
"""

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def pack_at_first_use(method: Any, layer: "torch.nn.Module") -> None:
    """In place of vLLM's `UnquantizedEmbeddingMethod.process_weights_after_loading`."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    # A strong reference would be a circle, and the drafter's own head would stay until collected.
    replaced = weakref.ref(layer)

    def first(
        x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor | None"
    ) -> "torch.Tensor":
        own = replaced()
        assert own is not None  # it is being called
        dispatch_cpu_unquantized_gemm(own, remove_weight=False)
        product: torch.Tensor = vars(own)["cpu_linear"](x, weight, bias)
        return product

    layer.cpu_linear = first  # type: ignore[assignment]  # where vLLM puts its own function


def install() -> None:
    """Replaces vLLM's method; may be called more than once in a process."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    name = "process_weights_after_loading"
    if not hasattr(UnquantizedEmbeddingMethod, name):
        raise ImportError(
            f"UnquantizedEmbeddingMethod has no {name}: {__name__} was written for vLLM 0.32"
        )
    setattr(UnquantizedEmbeddingMethod, name, pack_at_first_use)
