"""A nested state in one safetensors file: tensors as tensors, structure as JSON in the header.

    write_state(path, {"step": 3, "moments": {0: tensor}, "shapes": OrderedDict(w=torch.Size([2]))})
    state = read_state(path)

Ours because safetensors writes flat dicts of tensors alone, and torch.save writes pickles. It holds
what DeepSpeed's states consist of: dicts (any plain keys, in order), lists, tuples, sizes, dtypes,
numbers and the classes of `KNOWN`. Writing anything else is an error, so every file can be read
back.
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
"""DeepSpeed's classes whose instances are restored from attributes, without running their code."""

_STRUCTURE = "structure"
_CONTAINERS = {"list": list, "tuple": tuple, "size": torch.Size}


def write_state(path: Path, state: Any) -> None:
    """Writes `state` to `path`; a value of another type is a TypeError that names its place."""
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_encode(state, tensors, "state"))
    save_file(tensors, path, metadata={_STRUCTURE: structure})


def read_state(path: Path) -> Any:
    """Reads what `write_state` wrote, with its tensors in the CPU's memory."""
    with safe_open(path, framework="pt") as file:
        structure = (file.metadata() or {}).get(_STRUCTURE)
        if structure is None:
            raise OutriderError(
                f"{path}: a safetensors file without {_STRUCTURE!r} in its header;"
                " no checkpoint of Outrider's"
            )
        return _decode(json.loads(structure), file)


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    """Plain values are written as they are, everything else as [kind, content]."""
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
        pairs = []
        for key, item in value.items():
            pairs.append([_encode(key, tensors, where), _encode(item, tensors, f"{where}.{key}")])
        return ["ordered" if isinstance(value, OrderedDict) else "dict", pairs]
    for kind, container in _CONTAINERS.items():
        if type(value) is container:
            items = enumerate(value)
            return [kind, [_encode(item, tensors, f"{where}.{index}") for index, item in items]]
    if KNOWN.get(type(value).__name__) is type(value):
        return ["object", [type(value).__name__, _encode(vars(value), tensors, where)]]
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{where}: a {name} cannot be written to a checkpoint")


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
