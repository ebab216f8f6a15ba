"""Headers and values of safetensors files without torch: dtype, shape, finiteness, equality.

    headers = tensor_headers(directory)          # by name; no weight is read
    headers["lm_head.weight"].shape
    is_finite(headers["lm_head.weight"])         # reads that tensor, a piece at a time

A file begins with 8 bytes of length and a JSON header of that length; offsets count from its end
(github.com/huggingface/safetensors, "Format").
"""

import dataclasses
import json
import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import INDEX, SINGLE

PIECE = 2**26
"""Most bytes that are read at once."""

EXPONENT_BITS = {
    "F64": 0x7FF << 52,
    "F32": 0xFF << 23,
    "BF16": 0xFF << 7,
    "F16": 0x1F << 10,
    "F8_E5M2": 0x1F << 2,
}
"""Exponent bits by dtype: a number with all of them set is infinite or NaN."""

WIDTHS = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "BOOL": 1,
}
"""Bytes of a number by dtype."""


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """One tensor of a file: name of the dtype, shape, and its bytes [begin, end)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def floats(self) -> int:
        """Number of values of a floating-point tensor; 0 for integers and truth values."""
        return math.prod(self.shape) if "F" in self.dtype else 0


def tensor_headers(directory: Path, only: Iterable[str] | None = None) -> dict[str, TensorHeader]:
    """Every tensor of a checkpoint by name, from the headers of its files, or `only` of these.

    A missing or truncated file is an `OutriderError`.
    """
    index = directory / INDEX
    if only is not None:
        files = [directory / name for name in sorted(only)]
    elif index.is_file():
        files = sorted({directory / name for name in read_json(index)["weight_map"].values()})
    else:
        files = [directory / SINGLE]
    headers: dict[str, TensorHeader] = {}
    for file in files:
        if not file.is_file():
            listed = f", though {INDEX} names it" if index.is_file() else ""
            raise OutriderError(
                f"{file}: no such file{listed}; name a whole checkpoint's directory"
            )
        headers |= {header.name: header for header in _read(file)}
    return headers


def is_finite(header: TensorHeader) -> bool:
    """True for a tensor without infinities and NaN. Integers are always finite."""
    bits = EXPONENT_BITS.get(header.dtype)
    if header.dtype == "F8_E4M3":
        bits = 0x7F  # no infinity, and one bit pattern for NaN
    return bits is None or not any(((piece & bits) == bits).any() for piece in _pieces(header))


def rows_that_differ(one: TensorHeader, other: TensorHeader) -> int:
    """Rows (of the first dimension) in which two tensors of the same shape differ.

    Tensors of the same dtype differ by any bit, others by more than bfloat16's rounding.
    """
    if (one.file, one.begin) == (other.file, other.begin):
        return 0
    row = max(1, math.prod(one.shape[1:]))
    different = 0
    for a, b in zip(_pieces(one, row), _pieces(other, row), strict=True):
        if one.dtype == other.dtype:
            unequal = a != b
        else:
            a, b = _floats(a, one), _floats(b, other)
            unequal = ~np.isclose(a, b, rtol=2**-7, atol=1e-12)
        different += int(unequal.reshape(-1, row).any(axis=1).sum())
    return different


def integers(header: TensorHeader) -> NDArray[Any]:
    """The values of an integer tensor."""
    return np.concatenate([*_pieces(header)]).view(f"i{WIDTHS[header.dtype]}")


def _read(file: Path) -> Iterator[TensorHeader]:
    size = file.stat().st_size
    broken = OutriderError(
        f"{file}: not a whole safetensors file ({size:,} bytes); copy it again from its source"
    )
    with file.open("rb") as opened:
        first = opened.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if 8 + length > size:
            raise broken
        try:
            entries: dict[str, Any] = json.loads(opened.read(length))
        except ValueError:
            raise broken from None
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > size:
            raise broken
        yield TensorHeader(name, file, entry["dtype"], tuple(entry["shape"]), begin, end)


def _pieces(header: TensorHeader, row: int = 1) -> Iterator[NDArray[Any]]:
    """The tensor's numbers as unsigned integers, flat, in pieces of whole rows.

    Pieces have the same number of rows for every dtype, so those of two tensors match.
    """
    if header.begin == header.end:
        return
    width, numbers = WIDTHS[header.dtype], max(1, PIECE // (8 * row)) * row
    raw = np.memmap(header.file, np.uint8, "r", header.begin, (header.end - header.begin,))
    for start in range(0, len(raw), numbers * width):
        yield raw[start : start + numbers * width].view(f"u{width}")


def _floats(bits: NDArray[Any], header: TensorHeader) -> NDArray[np.float32]:
    if header.dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    kinds: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    return bits.view(kinds[header.dtype]).astype(np.float32)
