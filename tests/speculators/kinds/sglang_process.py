"""Loads speculators with SGLang's own code and prints what became of each tensor, as JSON.

It runs in the environment of requirements/sglang.sh, in a process that sees no GPU:

    build/sglang/venv/bin/python tests/speculators/kinds/sglang_process.py jobs.json results.json

A job has SGLang's command line (`arguments`), and `load` where the draft model's weights are read.
SGLang's parser, its resolution of arguments, ModelConfig, DefaultModelLoader and its models run as
they are. Kernels are never called: no forward pass is run. torchvision, which SGLang imports for
images and which has no build for this torch, is a stand-in.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import transformers
from torch import Tensor, nn

STAND_INS = ("torchvision",)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins, after all other finders."""

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return MagicMock(name=spec.name, __spec__=spec, __path__=[], __name__=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def placements(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Which parameter each tensor fills, and which elements none fills.

    All tensors but one are NaN, so the finite elements are that tensor's. Elements that stay finite
    without any are the loader's own (rows that pad a vocabulary).
    """
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    empty = {name: nan_like(tensor) for name, tensor in floats.items()} | {
        name: tensor for name, tensor in tensors.items() if name not in floats
    }
    of_loader = finite_after(model, empty)
    placed: dict[str, list[dict[str, Any]]] = {}
    for name, tensor in floats.items():
        finite = finite_after(model, empty | {name: tensor})
        placed[name] = [
            {
                "parameter": parameter,
                "elements": int(mask.sum()),
                "equal": equal_values(model.get_parameter(parameter)[mask], tensor),
            }
            for parameter, mask in differences(finite, of_loader).items()
        ]
    filled = finite_after(model, tensors)
    return {
        "placed": placed,
        "elements": {name: parameter.numel() for name, parameter in model.named_parameters()},
        "unfilled": {name: int((~mask).sum()) for name, mask in filled.items() if not mask.all()},
        "of_loader": {name: int(mask.sum()) for name, mask in of_loader.items() if mask.any()},
    }


def nan_like(tensor: Tensor) -> Tensor:
    return torch.full(tensor.shape, float("nan")).to(tensor.dtype)


def finite_after(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The finite elements of each parameter after the model's `load_weights`."""
    for parameter in model.parameters():
        parameter.data.copy_(nan_like(parameter.data))
    model.load_weights(iter(tensors.items()))
    return {name: ~parameter.float().isnan() for name, parameter in model.named_parameters()}


def differences(masks: dict[str, Tensor], without: dict[str, Tensor]) -> dict[str, Tensor]:
    remaining = {name: mask & ~without[name] for name, mask in masks.items()}
    return {name: mask for name, mask in remaining.items() if mask.any()}


def equal_values(filled: Tensor, tensor: Tensor) -> bool:
    return torch.equal(filled.float(), tensor.to(filled.dtype).float().flatten())


def captured_layers(arguments: Any, target: Any) -> list[int]:
    """The layers whose inputs SGLang captures, by the rule of the target's own class."""
    from sglang.srt.model_executor.model_runner_components.attention_backend_setup import (
        configure_aux_hidden_state_capture,
    )
    from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (
        resolve_spec_aux_hidden_state_config,
    )
    from sglang.srt.model_loader.utils import get_model_architecture
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    settings = resolve_spec_aux_hidden_state_config(
        server_args=arguments,
        model_config=target,
        spec_algorithm=SpeculativeAlgorithm.EAGLE3,
        is_draft_worker=False,
    )
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=target.hf_config,
        model=SimpleNamespace(layers_to_capture=[]),
    )
    rule = get_model_architecture(target)[0].set_eagle3_layers_to_capture
    model.set_eagle3_layers_to_capture = MethodType(rule, model)
    configure_aux_hidden_state_capture(
        model=model,
        eagle_use_aux_hidden_state=settings.eagle_use_aux_hidden_state,
        eagle_aux_hidden_state_layer_ids=settings.eagle_aux_hidden_state_layer_ids,
        dflash_use_aux_hidden_state=False,
        dflash_target_layer_ids=None,
        is_dspark=False,
    )
    return sorted(model.model.layers_to_capture)


def loaded(draft: Any) -> dict[str, Any]:
    """What DefaultModelLoader makes of the draft model's directory."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as of_sglang

    loader = of_sglang.DefaultModelLoader(LoadConfig())
    quantization = of_sglang._get_quantization_config(draft, loader.load_config)
    with of_sglang.set_default_torch_dtype(draft.dtype), torch.device("cpu"):
        model = of_sglang._initialize_model(draft, loader.load_config, quantization)
    tensors = dict(loader._get_all_weights(draft, model))
    result = placements(model, tensors)
    ids_D = getattr(model, "hot_token_id", None)
    # All of its loading, with the preparation of weights for its kernels.
    loader.load_model(model_config=draft, device_config=DeviceConfig("cpu", 0))
    return result | {
        "draft_tokens": None if ids_D is None else ids_D.tolist(),
        "not_floating": sorted(tensors.keys() - result["placed"].keys()),
    }


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt import runtime_context
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import prepare_server_args

    arguments = prepare_server_args(job["arguments"])
    ranks = runtime_context.SpawnRanks(world_rank=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    start_one_rank()
    settings = runtime_context.get_spec()
    draft = ModelConfig.from_server_args(
        arguments, model_path=settings.speculative_draft_model_path, is_draft_model=True
    )
    result: dict[str, Any] = {
        "architecture": draft.hf_config.architectures[0],
        "quantization": draft.quantization,
        "algorithm": settings.speculative_algorithm,
        "draft": settings.speculative_draft_model_path,
        "steps": settings.speculative_num_steps,
        "topk": settings.speculative_eagle_topk,
        "draft_tokens_per_step": settings.speculative_num_draft_tokens,
    }
    if settings.speculative_algorithm == "EAGLE3":
        target = ModelConfig.from_server_args(arguments)
        result["layers"] = captured_layers(arguments, target)
    return result | (loaded(draft) if job["load"] else {})


@cache
def start_one_rank() -> None:
    """Starts the process groups that the models ask for their ranks."""
    from sglang.srt.distributed import parallel_state

    with tempfile.TemporaryDirectory() as folder:
        parallel_state.init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{folder}/rendezvous",
            backend="gloo",
        )
        parallel_state.initialize_model_parallel(backend="gloo")


def main() -> None:
    jobs_file, results_file = map(Path, sys.argv[1:])
    # transformers looks for torchvision's version, which the stand-in lacks.
    transformers.AutoProcessor  # noqa: B018
    sys.meta_path.append(StandIns())
    results = []
    for job in json.loads(jobs_file.read_text(encoding="utf-8")):
        try:
            result = run_job(job)
        except (Exception, SystemExit) as error:  # the parser exits
            result = {"error": f"{type(error).__name__}: {error}"}
        results.append(result)
    results_file.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
