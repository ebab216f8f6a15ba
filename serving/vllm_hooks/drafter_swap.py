"""Loads another speculator's weights over those of a live engine's drafter.

The rest of the engine stays as it is: compiled code, CUDA graphs (the weights change in place) and
caches. vllm_hooks/weight_transfer.py decides what is loaded, and loads the old weights again where
this fails. Written against vLLM 0.32, both model runners.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from outrider.speculators.kinds.protocol import TrainableKind

MASK = "mask_hidden"
"""Name of the states that a parallel drafter reads where no token is known."""


CONTEXT_COPIES = ("_fused_kv_weight", "_fused_kv_bias", "_k_norm_weights")
"""Attributes of a drafter that projects the target's states apart from its own tokens."""


def replace_weights(
    runner: Any,
    drafter: Any,
    model_config: Any,
    kind: TrainableKind,
    tensors: Iterable[tuple[str, torch.Tensor]],
    copies: dict[str, torch.Tensor],
) -> None:
    """Loads `tensors`, (name, tensor as stored), into `drafter`, a model of `runner`.

    `copies` are the drafter's `context_copies` after its start: CUDA graphs have their addresses.
    An error on the way leaves the drafter with a mixture of old and new weights.
    """
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    for module in drafter.modules():
        # With its kernel set up, the experts' method would take the new weights unpacked, where
        # the CPU kernel needs them packed.
        method: Any = getattr(module, "quant_method", None)
        if runner.device.type == "cpu" and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
    initialize_layerwise_reload(drafter)
    try:
        # Only now are the names those of the checkpoint: kernels for FP8 may rename weights and
        # scales.
        expected = required(drafter, kind)
        mask: list[torch.Tensor] = []

        def noted() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in tensors:
                if name.endswith(MASK):
                    mask.append(tensor)
                yield name, tensor

        loaded = load(drafter, noted())
    finally:  # no layer may stay on the meta device: the next request would end the engine
        finalize_layerwise_reload(drafter, model_config)
    if mask:
        load_mask(proposer_of(runner), mask[0])
    renew_context(drafter.model, copies)
    if missing := sorted(expected - loaded):
        raise RuntimeError(f"no weights for {', '.join(missing)}")


def proposer_of(runner: Any) -> Any:
    """What drafts with the model: `drafter` of model runner V1, `speculator` of V2."""
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def load_mask(proposer: Any, mask: torch.Tensor) -> None:
    """Loads a parallel drafter's mask states and projects them.

    vLLM 0.32 projects them once, after its start. They are a buffer without a weight loader, which
    is on the meta device while weights are loaded again and has no values afterwards.
    """
    proposer.model.mask_hidden.copy_(mask.view(1, -1))
    projected_H = proposer.model.combine_hidden_states(proposer.model.mask_hidden.view(-1))
    proposer.parallel_drafting_hidden_state_tensor.copy_(projected_H)


def context_copies(model: Any) -> dict[str, torch.Tensor]:
    """The copies of weights with which a model makes keys and values of the target's states."""
    found = {name: getattr(model, name, None) for name in CONTEXT_COPIES}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@torch.no_grad()
def renew_context(model: Any, copies: dict[str, torch.Tensor]) -> None:
    """Derives what such a model keeps besides its weights, in the tensors that it had before.

    vLLM 0.32 does so at the end of loading, in new tensors, when rotary tables are still on the
    meta device and a CPU's kernel may have packed the weights and dropped them. Without a copy the
    model projects its context with the layer itself.
    """
    if not hasattr(model, "_build_fused_kv_buffers"):
        return
    model._build_fused_kv_buffers()
    if any(projection.weight.numel() == 0 for projection in model._context_qkv_projs):
        model._fused_kv_weight = model._fused_kv_bias = None
    for name, new in context_copies(model).items():
        if name in copies:
            setattr(model, name, copies[name].copy_(new))


def load(drafter: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Loads weights and returns the names of the parameters that they filled, under vLLM's names.

    Models with an EAGLE-3 head return nothing, but the loader that they call does; it calls itself
    for inner modules, so the outermost call returns all names.
    """
    from vllm.model_executor.models.utils import AutoWeightsLoader

    original, found = AutoWeightsLoader.load_weights, list[set[str]]()

    def recording(self: Any, *args: Any, **kwargs: Any) -> set[str]:
        names: set[str] = original(self, *args, **kwargs)
        found.append(names)
        return names

    setattr(AutoWeightsLoader, "load_weights", recording)  # noqa: B010 (a method, for mypy)
    try:
        loaded: set[str] | None = drafter.load_weights(weights)
    finally:
        setattr(AutoWeightsLoader, "load_weights", original)  # noqa: B010
    if loaded is None:
        loaded = found[-1] if found else set()
    return loaded


def required(drafter: torch.nn.Module, kind: TrainableKind) -> set[str]:
    """The parameters that a speculator's directory must have, under vLLM's names."""
    names = {name for name, _ in drafter.named_parameters()}
    return {name for name in names if not kind.stays_with_target(name)}
