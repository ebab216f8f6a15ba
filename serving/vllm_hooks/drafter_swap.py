"""Exchanges the drafter of a live engine: new weights in milliseconds, everything else stays.

Speeds of two speculators compare best within one engine, in alternating blocks: the same engine
started twice can differ by a factor of two on a shared machine. `Server.swap_drafter` calls this
through the server's /collective_rpc. Written against vLLM 0.32, both model runners.
"""

from pathlib import Path
from typing import Any

import torch

from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.protocol import TrainableKind


class DrafterExtension:
    """Methods that vLLM's worker gains; the annotated attributes are the worker's."""

    model_runner: Any
    vllm_config: Any
    device: torch.device

    def swap_drafter(self, directory: str) -> dict[str, Any]:
        """Loads the speculator in `directory` over the drafter's weights.

        The weights change in place, so CUDA graphs keep their addresses.
        """
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        drafter = self.model_runner.get_draft_model()
        if drafter is None:  # a pipeline stage before the last one
            return {"loaded": 0, "missing": []}
        kind = trainable_kind_of(Path(directory))
        for module in drafter.modules():
            # With its kernel set up, the experts' method would take the new weights unpacked,
            # where the CPU kernel needs them packed.
            method: Any = getattr(module, "quant_method", None)
            if self.device.type == "cpu" and getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None
        initialize_layerwise_reload(drafter)
        # Only now are the names those of the checkpoint: kernels for FP8 may rename weights and
        # scales.
        expected = required(drafter, kind)
        loaded = drafter.load_weights(kind.exchanged(Path(directory)))
        finalize_layerwise_reload(drafter, self.vllm_config.model_config)
        return {"loaded": len(loaded), "missing": sorted(expected - loaded)}


def required(drafter: torch.nn.Module, kind: TrainableKind) -> set[str]:
    """The parameters that a speculator's directory must have, under vLLM's names."""
    names = {name for name, _ in drafter.named_parameters()}
    return {name for name in names if not kind.stays_with_target(name)}
