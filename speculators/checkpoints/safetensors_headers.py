"""Headers of safetensors files, and checks of tensors for finiteness and equality.

headers = tensor_headers(directory)          # by name; no weight is read, no torch
headers["lm_head.weight"].shape
is_finite(headers["lm_head.weight"])         # reads that tensor
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import (
    INDEX,
    SINGLE,
    fix_of_missing_weights,
    read_index,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """Name, file, dtype and shape of a tensor."""

    name: str
    file: Path
    dtype: str
    """The dtype's name in safetensors, such as `BF16`."""
    shape: tuple[int, ...]

    @property
    def floats(self) -> int:
        """Number of values in a floating-point tensor; 0 for integers and booleans."""
        return math.prod(self.shape) if "F" in self.dtype else 0

    def read(self) -> "Tensor":
        """Reads the tensor."""
        with safe_open(self.file, "pt") as file:
            return file.get_tensor(self.name)


def tensor_headers(directory: Path, only: Iterable[str] | None = None) -> dict[str, TensorHeader]:
    """Headers of a checkpoint's tensors by name; `only` limits the files.

    Raises an `OutriderError` if a file is missing or truncated.
    """
    index = directory / INDEX
    if only is None:
        only = set(read_index(index).values()) if index.is_file() else {SINGLE}
    headers: dict[str, TensorHeader] = {}
    for file in (directory / name for name in sorted(only)):
        if not file.is_file():
            listed = f", though {INDEX} names it" if index.is_file() else ""
            raise OutriderError(
                f"{file}: no such file{listed}; {fix_of_missing_weights(directory)}"
            )
        try:
            with safe_open(file, "np") as opened:
                for name in opened.keys():  # noqa: SIM118 (a safetensors file is not a dict)
                    part = opened.get_slice(name)
                    shape = tuple(part.get_shape())
                    headers[name] = TensorHeader(name, file, part.get_dtype(), shape)
        except SafetensorError:
            raise OutriderError(
                f"{file}: not a complete safetensors file ({file.stat().st_size:,} bytes); copy it"
                " again from its source"
            ) from None
    return headers


def is_finite(header: TensorHeader) -> bool:
    """True for a tensor without infinity or NaN. Integers are always finite."""
    value = header.read()
    if not value.numel():
        return True
    # NaN and infinity are the extremes of what has them. For bf16, `aminmax` takes a fiftieth of
    # the time of `isfinite`; it has no 8-bit floats.
    extremes = (value.float() if value.itemsize == 1 else value).aminmax()
    return all(bool(extreme.isfinite()) for extreme in extremes)


def rows_that_differ(first: TensorHeader, second: TensorHeader) -> int:
    """Number of rows in which two tensors of the same shape differ.

    Tensors of the same dtype are compared exactly, others to within bfloat16's rounding error.
    """
    if (first.file, first.name) == (second.file, second.name):
        return 0
    a = first.read().float()
    b = second.read().float()
    # 2^-7 is one unit in the last place of bf16: the copies were rounded separately.
    unequal = a != b if first.dtype == second.dtype else ~a.isclose(b, rtol=2**-7, atol=1e-12)
    return int(unequal.reshape(len(unequal), -1).any(1).sum())
