"""A GPU that is this CPU: its tensors may not meet others, as torch raises on a real one.

    with gpu_on_cpu():
        x = torch.ones(3, device="cuda")     # x.device is cuda:0, and x.is_cuda is true
        x + torch.ones(3)                    # MixedDevices

Values are a CPU's. A tensor is on the GPU if its storage is marked, so views and in-place results
need no rule. One mode replaces what names a device (`.device`, `.to`, `device=`); another, below
autograd, checks the tensors of every operator, also in backward. FakeTensorMode is no alternative:
its tensors have no values, but lengths and token ids are read, and without CUDA it cannot index.

A CPU tensor as an index that reads a GPU tensor is an error too: torch copies it, and waits for the
copy. As an index that writes it is none, since torch's own vmap makes such indices.
"""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.autograd.graph import _engine_run_backward
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import _allowed_determinism_checks_to_fns as CHECKPOINT_CHECKS

from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.layers import prefix_attention

GPU = torch.device("cuda", 0)

COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
"""Operators whose tensors may be on different devices."""


WRITES = (torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)
"""Operators whose second argument, the indices, may be on the CPU."""


class MixedDevices(RuntimeError):
    """An operator read tensors of both devices."""


class Storages:
    """A set of tensors' storages."""

    def __init__(self) -> None:
        # A weak reference keeps the address from being used again.
        self._held: dict[int, StorageWeakRef] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return address_of(tensor) in self._held

    def add(self, tensor: Tensor) -> None:
        self._held[address_of(tensor)] = StorageWeakRef(storage_of(tensor))

    def discard(self, tensor: Tensor) -> None:
        self._held.pop(address_of(tensor), None)


class Marks:
    """Which tensors are on the GPU; all others are on the CPU."""

    def __init__(self) -> None:
        self.gpu = Storages()
        self.anywhere = Storages()
        """Tensors that torch creates inside of an operator, on the device of its inputs."""
        self.from_python = False
        """Whether Python calls a function without tensors, such as `torch.zeros`."""

    def place(self, value: Any, on_gpu: bool) -> Any:
        """Marks or unmarks the tensors of a result; returns it."""
        for tensor in leaves(value):
            self.anywhere.discard(tensor)
            if on_gpu:
                self.gpu.add(tensor)
            else:
                self.gpu.discard(tensor)
        return value


def storage_of(tensor: Tensor) -> Any:
    """A tensor's storage, also inside of vmap."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage()


def address_of(tensor: Tensor) -> int:
    """The address of a tensor's storage."""
    return int(storage_of(tensor)._cdata)


def leaves(value: Any) -> list[Tensor]:
    """All tensors in a structure, except those without memory."""
    found = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [tensor for tensor in found if not tensor.is_meta]


class SameDevice(TorchDispatchMode):
    """Checks the inputs of each operator, and marks its results."""

    def __init__(self, marks: Marks):
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            read = leaves((args[0], args[2]) if func in WRITES else (args, kwargs))
            on_gpu = [tensor in self.marks.gpu for tensor in read]
            if any(on_gpu) and func not in COPIES:
                self.check(func, read)
            result = func(*args, **(kwargs or {}))
            if any(on_gpu) and func is not torch.ops.aten.copy_.default:
                self.marks.place(result, True)
            if not read and not self.marks.from_python:
                for tensor in leaves(result):
                    self.marks.anywhere.add(tensor)
            return result

    def check(self, func: Any, read: list[Tensor]) -> None:
        """Raises an error if a tensor is on the CPU; one without dimensions is a number."""
        devices = [
            "cuda" if tensor in self.marks.gpu or tensor in self.marks.anywhere else "cpu"
            for tensor in read
        ]
        pairs = [*zip(devices, read, strict=True)]
        if any(device == "cpu" and tensor.dim() > 0 for device, tensor in pairs):
            described = ", ".join(f"{device} {tuple(tensor.shape)}" for device, tensor in pairs)
            raise MixedDevices(f"{func}: expected all tensors on the same device: {described}")


class NamedDevice(TorchFunctionMode):
    """Replaces what reads, names and changes a tensor's device."""

    def __init__(self, marks: Marks):
        super().__init__()
        self.marks = marks
        self.replaced: dict[Any, Any] = {
            Tensor.device.__get__: lambda x: GPU if x in marks.gpu else x.device,
            Tensor.is_cuda.__get__: lambda x: x in marks.gpu,
            Tensor.is_cpu.__get__: lambda x: x not in marks.gpu,
            Tensor.to: self.to,
            Tensor.cpu: lambda x: self.to(x, "cpu"),
            Tensor.cuda: lambda x: self.to(x, GPU),
            Tensor.numpy: self.numpy,
            Tensor.__array__: self.numpy,
            Tensor.backward: self.backward,
            torch._C._nn._parse_to: torch._C._nn._parse_to,  # the arguments of a module's `to`
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.replaced:
            return self.replaced[func](*args, **kwargs)
        device = torch.device(kwargs.get("device") or "meta")
        if device.type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        before = self.marks.from_python
        self.marks.from_python = not leaves((args, kwargs))
        try:
            result = func(*args, **kwargs)
        finally:
            self.marks.from_python = before
        return result if device.type == "meta" else self.marks.place(result, device.type == "cuda")

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A copy on another device, or torch's own result."""
        first = kwargs.pop("device", args[0] if args else None)
        if isinstance(first, Tensor):
            device = GPU if first in self.marks.gpu else first.device
            args = (device, first.dtype, *args[1:])
        elif first is None or isinstance(first, torch.dtype):
            return tensor.to(*args, **kwargs)
        else:
            device = torch.device(first)
            args = (device, *args[1:])
        on_gpu = device.type == "cuda"
        result = tensor.to("cpu" if on_gpu else device, *args[1:], **kwargs)
        if tensor.is_meta or device.type == "meta" or on_gpu == (tensor in self.marks.gpu):
            return result
        if address_of(result) == address_of(tensor):
            result = result.clone()
        placed: Tensor = self.marks.place(result, on_gpu)
        return placed

    def numpy(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """A CPU tensor's values."""
        if tensor in self.marks.gpu:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return tensor.numpy(*args, **kwargs)

    def backward(self, loss: Tensor, gradient: Tensor | None = None, **_: Any) -> None:
        """Backward with this mode, without which torch runs the functions that it is given."""
        gradients = (torch.ones_like(loss) if gradient is None else gradient,)
        self.marks.from_python = False
        with self:
            _engine_run_backward(
                (loss,), gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
            )


def dense_by_mask(
    query_BAND: Tensor,
    key_BAPD: Tensor,
    value_BAPV: Tensor,
    *,
    mask: Any,
    scale: float,
    small: bool,
) -> tuple[Tensor, Any]:
    """Flex attention computed densely from its mask, with gradients, which it lacks on a CPU."""
    listed = [value for value in vars(mask).values() if isinstance(value, Tensor)]
    assert listed and all(tensor.is_cuda for tensor in listed)
    query_N = torch.arange(query_BAND.shape[2], device=query_BAND.device)
    key_P = torch.arange(key_BAPD.shape[2], device=query_BAND.device)
    allowed_NP = mask.mask_mod(0, 0, query_N[:, None], key_P[None])
    score_BANP = (query_BAND @ key_BAPD.transpose(-1, -2)).float() * scale
    score_BANP = score_BANP.masked_fill(~allowed_NP, float("-inf"))
    lse_BAN = score_BANP.logsumexp(-1)
    share_BANP = (score_BANP - lse_BAN[..., None]).exp().to(value_BAPV.dtype)
    return share_BANP @ value_BAPV, SimpleNamespace(lse=lse_BAN)


def shape_and_dtype(tensor: Tensor) -> dict[str, Any]:
    """What must be equal in a recomputed tensor."""
    return {"shape": tensor.shape, "dtype": tensor.dtype}


@contextlib.contextmanager
def gpu_on_cpu() -> Iterator[None]:
    """In this context, and in this thread, `cuda` is a device."""
    marks = Marks()
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "max_memory_allocated", lambda _: 0),
            (torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3"),
            (prefix_attention, "_compiled", lambda: dense_by_mask),
            (prefix_attention, "_needs_small_tiles", lambda *_: False),
            (Batch, "pinned", lambda batch: batch),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # Torch compares the devices of recomputed tensors, which are seen by the modes in backward
        # and not seen in forward, where they are saved inside of an operator.
        stack.enter_context(mock.patch.dict(CHECKPOINT_CHECKS, default=shape_and_dtype))
        stack.enter_context(SameDevice(marks))
        stack.enter_context(NamedDevice(marks))
        yield
