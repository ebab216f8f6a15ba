"""The mixture of two speculators is one, and at its ends it is one of the two."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.fp8 import dequantize, quantize
from outrider.speculators.interpolate import interpolate
from outrider.speculators.kinds.mtp.checkpoint import checkpoint_views, load_mtp, save_mtp
from tests.fp8_target import LINEAR, write_fp8_copy
from tests.tiny import LAYERS, write_tiny_target

MTP = f"model.layers.{LAYERS}."
MOVED = ("eh_proj.weight", "mlp.experts.2.up_proj.weight", "hnorm.weight")


@pytest.fixture(params=["bf16", "fp8"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = write_tiny_target(tmp_path / "source")
    return write_fp8_copy(source, tmp_path / "target") if request.param == "fp8" else source


@pytest.fixture
def custom(target: Path, tmp_path: Path) -> Path:
    speculator = load_mtp(target)
    torch.manual_seed(1)
    with torch.no_grad():
        for name in MOVED:
            checkpoint_views(speculator)[name].add_(
                torch.randn_like(checkpoint_views(speculator)[name]) * 0.1
            )
    save_mtp(speculator, target, tmp_path / "custom")
    return tmp_path / "custom"


def test_the_mixture_is_the_weighted_sum(target: Path, custom: Path, tmp_path: Path) -> None:
    interpolate(target, custom, 0.25, tmp_path / "mixed")
    base, other = (checkpoint_views(load_mtp(directory)) for directory in (target, custom))
    written, original = (
        load_file(tmp_path / "mixed" / "model.safetensors"),
        load_file(target / "model.safetensors"),
    )
    for name, tensor in checkpoint_views(load_mtp(tmp_path / "mixed")).items():
        if name not in MOVED:
            assert torch.equal(
                written[MTP + name].view(torch.uint8), original[MTP + name].view(torch.uint8)
            ), name
            continue
        expected = 0.75 * base[name].double() + 0.25 * other[name].double()
        if target.name == "target" and LINEAR.match(MTP + name):
            expected = dequantize(*quantize(expected, (128, 128)), (128, 128))
            # A value in the middle between two of e4m3's may fall either way.
            assert (tensor == expected).float().mean() > 0.99
            torch.testing.assert_close(tensor, expected, rtol=0.13, atol=0.01)
        else:
            torch.testing.assert_close(tensor.double(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("share", [0, 1])
def test_the_ends_are_the_two(target: Path, custom: Path, tmp_path: Path, share: int) -> None:
    interpolate(target, custom, share, tmp_path / "end")
    found, expected = (
        load_file(path / "model.safetensors")
        for path in (tmp_path / "end", custom if share else target)
    )
    assert load_mtp(tmp_path / "end").eh_proj.weight.isfinite().all()
    for name, tensor in found.items():
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name


def test_a_share_lies_between_base_and_custom(target: Path, custom: Path, tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=r"a share of 1\.5"):
        interpolate(target, custom, 1.5, tmp_path / "mixed")
