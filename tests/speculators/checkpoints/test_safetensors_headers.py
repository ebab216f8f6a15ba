"""Which stored tensors have infinity or NaN, in every type that checkpoints store."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.speculators.checkpoints.safetensors_headers import is_finite, tensor_headers

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_is_found(tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    if dtype == torch.float8_e4m3fn and math.isinf(value):
        pytest.skip("the type has no infinity")
    broken = torch.randn(3, 50).to(dtype)
    broken[1, 7] = value
    whole = torch.randn(3, 50).to(dtype)
    tensors = {"broken": broken, "whole": whole, "empty": torch.zeros(0, 4, dtype=dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    headers = tensor_headers(tmp_path)
    assert {name: is_finite(header) for name, header in headers.items()} == {
        "broken": False,
        "whole": True,
        "empty": True,
    }


def test_integers_are_finite(tmp_path: Path) -> None:
    tensors = {"d2t": torch.arange(9), "t2d": torch.tensor([True, False])}
    save_file(tensors, tmp_path / "model.safetensors")
    assert all(map(is_finite, tensor_headers(tmp_path).values()))
