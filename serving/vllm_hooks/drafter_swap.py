"""Another drafter in a live engine: its weights are exchanged in milliseconds, everything else stays.

Speeds of two speculators compare best within one engine, in alternating blocks: the same engine started twice can differ
by a factor of two on a shared machine. `Server.swap_drafter` calls this through the server's /collective_rpc.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from outrider.common.errors import OutriderError
from outrider.common.files import read_json

CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".prob_scale")
"""For an FP8 checkpoint vLLM makes room for scales of a quantized key-value cache, which DeepSeek's does not bring."""


class DrafterExtension:
    """Methods that vLLM's worker gains; `model_runner`, `vllm_config` and the rest are the worker's own."""

    def swap_drafter(self, directory: str) -> dict[str, Any]:
        """Loads the MTP layer in `directory` over the drafter's weights, in place (CUDA graphs keep their addresses)."""
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        runner = self.model_runner
        drafter = (runner.drafter if hasattr(runner, "drafter") else runner.speculator).model
        for module in drafter.modules():
            # With its kernel set up, the experts' method would take the new weights as they are, not packed for the CPU.
            method = getattr(module, "quant_method", None)
            if self.device.type == "cpu" and getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None
        initialize_layerwise_reload(drafter)
        # Only now under the checkpoint's names: kernels for FP8 may keep their weights and scales under others.
        expected = required(drafter)
        loaded = drafter.load_weights(mtp_tensors(Path(directory)))
        finalize_layerwise_reload(drafter, self.vllm_config.model_config)
        return {"loaded": len(loaded), "missing": sorted(expected - loaded)}


def required(drafter: torch.nn.Module) -> set[str]:
    """The parameters that a speculator's directory must bring, under vLLM's names."""
    names = {name for name, _ in drafter.named_parameters()}
    return {name for name in names if not _is_shared(name) and not name.endswith(CACHE_SCALES)}


def mtp_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the MTP layer, without the embedding and head that the drafter shares with the target."""
    from safetensors import safe_open

    config = read_json(directory / "config.json")
    prefix = f"model.layers.{config['num_hidden_layers']}."
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise OutriderError(f"{directory}: no *.safetensors here")
    for shard in shards:
        with safe_open(shard, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (a safetensors file is no dict)
                if name.startswith(prefix) and not _is_shared(name):
                    yield name, tensors.get_tensor(name)


def _is_shared(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "shared_head.head.weight"))
