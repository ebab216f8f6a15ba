"""Frozen experts and adapters: the plain module's arithmetic, without parameters."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.speculators.kinds.mtp.checkpoint import (
    load_mtp,
    mtp_checkpoint_tensors,
)
from outrider.speculators.kinds.mtp.kind import MTP
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.layers.decoder_layer import Experts
from outrider.speculators.layers.lora import ADAPTERS, AdaptedExperts
from tests.fp8_target import write_fp8_copy
from tests.tiny import write_tiny_target


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    source = write_tiny_target(folder / "source")
    return write_fp8_copy(source, folder / "target") if request.param == "fp8" else source


@pytest.fixture
def x_NH() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(40, 64)


def adapted(target: Path, moved: bool) -> MTPSpeculator:
    """Adapters of rank 4; with `moved`, as if training had moved B away from zero."""
    speculator = load_mtp(target, frozen_experts=True)
    experts = AdaptedExperts(speculator.block.mlp.experts, rank=4, alpha=6.0, seed=0)
    if moved:
        torch.manual_seed(4)
        torch.nn.init.normal_(experts.gate_up_b, std=0.1)
        torch.nn.init.normal_(experts.down_b, std=0.1)
    speculator.block.mlp.experts = experts
    return speculator


def gradients(speculator: MTPSpeculator, x_NH: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Of a sum with changing signs, to x and to every parameter that has one."""
    x_NH = x_NH.clone().requires_grad_()
    out_NH = speculator.block.mlp(x_NH)
    (out_NH * torch.linspace(-1, 1, out_NH.numel()).view_as(out_NH)).sum().backward()
    return x_NH.grad, {
        name: p.grad for name, p in speculator.named_parameters() if p.grad is not None
    }


def test_frozen_experts_compute_what_plain_ones_do(target: Path, x_NH: Tensor) -> None:
    plain = load_mtp(target)
    frozen = load_mtp(target, frozen_experts=True)
    torch.testing.assert_close(frozen.block.mlp(x_NH), plain.block.mlp(x_NH), rtol=1e-5, atol=1e-5)
    grad_x, grads = gradients(frozen, x_NH)
    expected_x, expected = gradients(plain, x_NH)
    torch.testing.assert_close(grad_x, expected_x, rtol=1e-4, atol=1e-5)
    assert set(grads) == {name for name in expected if ".mlp.experts." not in name}
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-4)


def test_adapted_experts_are_the_literal_sum(target: Path, x_NH: Tensor) -> None:
    """Token by token, expert by expert: W x + (alpha / rank) B (A x) in each projection."""
    speculator = adapted(target, moved=True)
    mlp = speculator.block.mlp
    weights = mtp_checkpoint_tensors(load_mtp(target).state_dict())
    experts = mlp.experts
    scale = 6.0 / 4
    weight_Nk, index_Nk = mlp.gate(x_NH)
    expected = torch.zeros_like(x_NH)
    for n, x_H in enumerate(x_NH):
        for weight, e in zip(weight_Nk[n], index_Nk[n].tolist(), strict=True):
            gate_b = experts.gate_up_b[e][:32]
            up_b = experts.gate_up_b[e][32:]
            low = experts.gate_up_a[e] @ x_H
            gate = weights[f"mlp.experts.{e}.gate_proj.weight"] @ x_H + scale * gate_b @ low
            up = weights[f"mlp.experts.{e}.up_proj.weight"] @ x_H + scale * up_b @ low
            act = gate / (1 + (-gate).exp()) * up
            down = weights[f"mlp.experts.{e}.down_proj.weight"] @ act
            expected[n] += weight * (down + scale * experts.down_b[e] @ (experts.down_a[e] @ act))
    torch.testing.assert_close(
        mlp.experts(x_NH, weight_Nk, index_Nk), expected, rtol=1e-4, atol=1e-4
    )


def test_merged_weights_compute_what_the_adapters_did(target: Path, x_NH: Tensor) -> None:
    speculator = adapted(target, moved=True)
    experts = speculator.block.mlp.experts
    merged = dict(experts.merge_adapters({name: getattr(experts, name) for name in ADAPTERS}))
    plain = load_mtp(target)
    views = {
        name: view
        for name, view in mtp_checkpoint_tensors(plain.state_dict()).items()
        if ".experts." in name and "shared" not in name
    }
    assert set(merged) == set(views)
    with torch.no_grad():
        for name, view in views.items():
            assert not torch.equal(view, merged[name])
            view.copy_(merged[name])
    assert type(plain.block.mlp.experts) is Experts
    torch.testing.assert_close(
        plain.block.mlp(x_NH), speculator.block.mlp(x_NH), rtol=1e-4, atol=1e-4
    )


def test_an_expert_whose_adapter_never_moved_keeps_its_bytes(target: Path, tmp_path: Path) -> None:
    speculator = adapted(target, moved=True)
    experts = speculator.block.mlp.experts
    with torch.no_grad():
        experts.gate_up_b[2] = 0
        experts.down_b[2] = 0
    merged = experts.merge_adapters({name: getattr(experts, name) for name in ADAPTERS})
    MTP().write(merged, Origin(target, None), tmp_path / "speculator")
    before = mtp_checkpoint_tensors(load_mtp(target).state_dict())
    after = mtp_checkpoint_tensors(load_mtp(tmp_path / "speculator").state_dict())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        f"mlp.experts.{e}.{p}_proj.weight" for e in (0, 1, 3) for p in ("gate", "up", "down")
    }
