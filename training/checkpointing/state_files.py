"""A nested state in one safetensors file: its tensors as tensors, its structure as JSON in the header. Nothing is unpickled.

    write_state(path, {"step": 3, "moments": {0: tensor}, "shapes": OrderedDict(w=torch.Size([2, 3]))})
    state = read_state(path)

It carries what DeepSpeed's states consist of: dicts (any plain keys, their order), lists, tuples, sizes, dtypes, numbers and the
few classes of `KNOWN`. Anything else is refused as it is written, so a checkpoint that cannot be read back is never made.
"""

import json
from collections import OrderedDict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.utils.tensor_fragment import fragment_address
from safetensors import safe_open
from safetensors.torch import save_file

from outrider.common.errors import OutriderError

KNOWN = {cls.__name__: cls for cls in (LossScaler, DynamicLossScaler, fragment_address)}
"""Classes of DeepSpeed's whose instances are restored from their attributes, without running their code."""

_STRUCTURE = "structure"
_CONTAINERS = {"list": list, "tuple": tuple, "size": torch.Size}


def write_state(path: Path, state: Any) -> None:
    """Writes `state` to `path`. A value of no known kind is a TypeError that says where it stands."""
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_encode(state, tensors, "state"))
    save_file(tensors, path, metadata={_STRUCTURE: structure})


def read_state(path: Path) -> Any:
    """What `write_state` wrote, its tensors in the CPU's memory."""
    with safe_open(path, framework="pt") as file:
        structure = (file.metadata() or {}).get(_STRUCTURE)
        if structure is None:
            raise OutriderError(
                f"{path}: a safetensors file without {_STRUCTURE!r} in its header; no checkpoint of Outrider's"
            )
        return _decode(json.loads(structure), file)


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    """Plain values stand for themselves; everything else is [kind, content]."""
    if isinstance(value, torch.Tensor):
        name = f"{len(tensors):05d} {where}"
        tensors[name] = value.detach().cpu().contiguous()
        return ["tensor", name]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Enum):
        return _encode(value.value, tensors, where)
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, dict):
        pairs = [
            [_encode(key, tensors, where), _encode(item, tensors, f"{where}.{key}")]
            for key, item in value.items()
        ]
        return ["ordered" if isinstance(value, OrderedDict) else "dict", pairs]
    for kind, container in _CONTAINERS.items():
        if type(value) is container:
            return [
                kind,
                [_encode(item, tensors, f"{where}.{index}") for index, item in enumerate(value)],
            ]
    if KNOWN.get(type(value).__name__) is type(value):
        return ["object", [type(value).__name__, _encode(vars(value), tensors, where)]]
    raise TypeError(
        f"{where}: a {type(value).__module__}.{type(value).__qualname__} cannot be written to a checkpoint"
    )


def _decode(node: Any, file: Any) -> Any:
    if not isinstance(node, list):
        return node
    kind, content = node
    if kind == "tensor":
        return file.get_tensor(content)
    if kind == "dtype":
        return getattr(torch, content)
    if kind in ("dict", "ordered"):
        pairs = ((_decode(key, file), _decode(item, file)) for key, item in content)
        return OrderedDict(pairs) if kind == "ordered" else dict(pairs)
    if kind == "object":
        name, attributes = content
        instance = object.__new__(KNOWN[name])
        vars(instance).update(_decode(attributes, file))
        return instance
    return _CONTAINERS[kind](_decode(item, file) for item in content)
